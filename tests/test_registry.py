"""Names that packages outside may add to."""

from __future__ import annotations

import sys

import pytest

from synther.errors import ConfigError
from synther.registry import Registry


@pytest.fixture
def registry() -> Registry[int]:
    return Registry("number", "synther.test_numbers", int, {"one": 1, "two": 2})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with entry points: a number, something else, and a module that fails."""
    folder = tmp_path / "numbers_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: numbers-package\nVersion: 1.0\n")
    things = {"seven": "SEVEN", "word": "WORD", "broken": "ABSENT", "one": "SEVEN"}
    points = [f"{name} = numbers_package:{thing}" for name, thing in things.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[synther.test_numbers]", *points]))
    (tmp_path / "numbers_package.py").write_text("SEVEN, WORD = 7, 'seven'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "numbers_package"
    sys.modules.pop("numbers_package", None)


def test_what_is_registered_is_found(registry):
    assert registry.register("three", 3) == 3
    assert [registry.get(name) for name in ("one", "three")] == [1, 3]
    assert registry.names() == ["one", "two", "three"]
    registry.remove("three")
    with pytest.raises(ConfigError, match="one, two, got 'three'"):
        registry.get("three")


@pytest.mark.parametrize("name", ["os", "os.path", "numbers_package:SEVEN", "", None, 3, ["one"]])
def test_an_unknown_name_is_answered_with_the_known_and_imports_nothing(registry, name):
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="--number must be one of one, two"):
        registry.check(name, "--number")
    with pytest.raises(ConfigError):
        registry.get(name)
    assert {module for module in set(sys.modules) - before if "numbers_package" in module or module == "os"} == set()


@pytest.mark.parametrize(("name", "thing"), [("one", 11), ("word", "a word")], ids=["taken", "of another type"])
def test_what_cannot_be_registered_is_refused(registry, name, thing):
    with pytest.raises(ConfigError, match=f"'{name}'"):
        registry.register(name, thing)
    assert registry.get("one") == 1


def test_an_installed_package_is_asked_when_its_name_is_used(registry, installed):
    registry.check("seven")
    assert "seven" in registry
    assert "eight" not in registry
    assert next(name for name, number in registry.items() if number == 2) == "two"  # found before any is loaded
    assert registry.names() == ["one", "two", "broken", "seven", "word"]
    assert installed not in sys.modules
    assert registry.get("seven") == 7
    assert installed in sys.modules
    assert registry.get("one") == 1, "what is our own stays ours"


@pytest.mark.parametrize(("name", "reason"), [("word", "int"), ("broken", "numbers_package")])
def test_an_entry_point_that_is_wrong_says_so(registry, installed, name, reason):
    with pytest.raises(ConfigError, match=reason):
        registry.get(name)


def test_all_are_listed_but_those_that_cannot_be_loaded(registry, installed, caplog):
    assert dict(registry.items()) == {"one": 1, "two": 2, "seven": 7}
    assert [name for name in ("word", "broken") if name in caplog.text] == ["word", "broken"]
