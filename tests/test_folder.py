"""Whose folder it is, and what somebody is told who comes with something else."""

from __future__ import annotations

import pytest

from synther.errors import ConfigError
from synther.folder import Difference, alone_in, claim, differences, key_of, read_object, unclaim

HELD = {"seed": 0, "settings": {"fit": {"steps": 5, "batch": None}, "kind": "mlp"}, "data": "a" * 64, "arms": ["real"]}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"seed": 1}, "seed (0, not 1)"),
        (
            {"settings": HELD["settings"] | {"fit": {"steps": 7, "batch": 3}}},
            "settings (fit.steps 5, not 7; fit.batch null",
        ),
        ({"settings": {"fit": {"steps": 5}, "kind": "mlp", "new": 1}}, "settings (new null, not 1)"),
        ({"samples": 5}, "samples (null, not 5)"),  # of which whoever wrote it did not know
        ({"data": "b" * 64}, "data"),
        ({"arms": ["real", "noise"], "seed": 2}, 'seed (0, not 2), arms (["real"], not ["real", "noise"])'),
        ({"settings": {f"part{n}": n for n in range(9)}}, "settings (fit {"),
    ],
)
def test_what_differs_is_told_where_it_is_short(asked, told, tmp_path):
    claim(tmp_path, HELD)
    claim(tmp_path, HELD)
    with pytest.raises(ConfigError) as refused:
        claim(tmp_path, HELD | asked)
    assert f"{tmp_path} holds a run with another {told}" in str(refused.value)
    assert str(refused.value).endswith(": choose another --out, or remove the folder")
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


def test_what_is_none_is_as_if_it_were_not_said(tmp_path):
    claim(tmp_path, {"settings": {"fit": {"steps": 5, "patience": None}}})
    claim(tmp_path, {"settings": {"fit": {"steps": 5, "overfit": None}}})
    with pytest.raises(ConfigError, match=r"settings \(fit\.overfit null, not 0\.1\)"):
        claim(tmp_path, {"settings": {"fit": {"steps": 5, "overfit": 0.1}}})


def test_differences_are_found_wherever_they_are():
    wanted = {"a": 1, "b": {"c": "x", "d": None}, "e": 0.5}
    assert list(differences(wanted, wanted)) == []
    assert list(differences({"a": 2, "b": {"c": "y", "f": [1]}}, wanted)) == [
        Difference(("a",), 2, 1),
        Difference(("b", "c"), "y", "x"),
        Difference(("b", "f"), [1], None),
        Difference(("e",), None, 0.5),
    ]


def test_equal_descriptions_have_one_key():
    assert key_of({"a": 1, "b": {"c": None, "d": 2}}) == key_of({"b": {"d": 2, "e": None}, "a": 1})
    assert key_of({"a": 1, "b": {"d": 2}}) != key_of({"a": 1, "b": {"d": 3}})


def test_a_lock_is_let_go_of_however_the_work_ends(tmp_path):
    def fail():
        with alone_in(tmp_path):
            claim(tmp_path, HELD)  # beside the lock
            with pytest.raises(ConfigError, match="is at work in"), alone_in(tmp_path):
                pytest.fail("two at once")
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_claim_that_is_taken_back_leaves_room_for_another(tmp_path):
    with alone_in(tmp_path / "run"):
        claim(tmp_path / "run", {"seeds": 1})
        (tmp_path / "run" / "part").mkdir()
        (tmp_path / "run" / "part" / "log").touch()
        unclaim(tmp_path / "run")
        claim(tmp_path / "run", {"seeds": 2})
    assert read_object(tmp_path / "run" / "run.json") == {"seeds": 2}
