"""Somebody else's sampler, format, metric, data set, network and agent work like ours, by one call or entry point."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from synther import Synthesizer, datasets, preset, read, write
from synther.agents.agent import ALGORITHMS
from synther.agents.learner import ONLINE_AGENTS
from synther.agents.networks import NETWORKS
from synther.agents.policy import load_policy
from synther.assess.judge import assess
from synther.assess.metrics import METRICS
from synther.cli import main
from synther.datasets import DATASETS
from synther.diffusion.config import SAMPLERS
from synther.errors import ConfigError, FormatError
from synther.formats import FORMATS, Format
from synther.registry import Registry

from . import outside
from .support.short import short_learners

MINE = {"jump": (SAMPLERS, "JUMP"), "csv": (FORMATS, "CSV"), "reward_gap": (METRICS, "REWARD_GAP")}
MINE |= {"circles": (DATASETS, "CIRCLES"), "sine": (NETWORKS, "SINE"), "mirror": (ALGORITHMS, "Mirror")}
MINE |= {"calm": (ONLINE_AGENTS, "CALM")}
TINY = {"network": {"width": 16, "depth": 1, "embedding": 8}, "fit": {"steps": 10, "holdout": 0.0}}
OPTIONS = [f"--{group}.{name}={value}" for group, some in TINY.items() for name, value in some.items()]


@pytest.fixture(autouse=True)
def added(request, tmp_path_factory, monkeypatch) -> Iterator[None]:
    """By a call, or by entry points where a test asks for that."""
    if not hasattr(request, "param"):
        for name, (registry, thing) in MINE.items():
            registry.register(name, getattr(outside, thing))
    else:
        place = tmp_path_factory.mktemp("installed")
        shutil.copy(outside.__file__, place / "toy_package.py")
        about = place / "toy_package-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
        points = [f"[{registry.group}]\n{name} = toy_package:{thing}\n" for name, (registry, thing) in MINE.items()]
        (about / "entry_points.txt").write_text("".join(points))
        monkeypatch.syspath_prepend(place)
    short_learners(monkeypatch)
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    yield
    for name, (registry, _) in MINE.items():
        registry.remove(name)
    sys.modules.pop("toy_package", None)


def test_a_sampler():
    rows = datasets.read("circles").rows
    settings = preset("fast").changed(**TINY, sampler={"kind": "jump", "steps": 4})
    model = Synthesizer(settings, device="cpu").fit(rows, progress=False)
    model.save("model.safetensors")
    loaded = Synthesizer.load("model.safetensors", device="cpu")
    assert loaded.settings.sampler.kind == "jump"
    assert loaded.sample(20, seed=1, progress=False).equals(model.sample(20, seed=1, progress=False))


def test_a_format():
    rows = datasets.read("circles").rows
    write(rows, "rows.csv")
    np.testing.assert_allclose(read("rows.csv").observation, rows.observation, rtol=1e-5)
    Path("rows.csv").rename("rows.txt")
    assert len(read("rows.txt", format="csv")) == len(rows)
    with pytest.raises(FormatError):
        read("rows.txt")


def test_a_format_of_objects_that_can_only_be_read():
    rows = datasets.read("circles").rows
    FORMATS.register("list", Format(lambda parts: parts[0], accepts=lambda thing: isinstance(thing, list)))
    try:
        assert read([rows]) is rows
        with pytest.raises(FormatError):
            write(rows, [])
    finally:
        FORMATS.remove("list")
    with pytest.raises(FormatError):
        read([rows])


def test_a_metric():
    rows = datasets.read("circles").rows
    found = assess(rows, rows[:50], held_out=rows).measure("reward_gap")
    assert found.value == pytest.approx(abs(rows.reward.mean() - rows.reward[:50].mean()), abs=1e-5)
    assert found.real == pytest.approx(0, abs=1e-5)
    assert (found.label, found.better) == ("Reward gap", "lower")


def test_a_data_set():
    found = datasets.read("circles", rows=30, seed=2)
    assert (len(found.rows), found.origin, found.env_id, found.episodes) == (30, "computed", "Circle-v0", 3)
    assert found.agent == {"td3_bc": {"alpha": 1.0}}
    assert not found.rows.equals(datasets.read("circles", rows=30).rows)
    write(found.rows[:7], "circles.csv")
    assert len(datasets.read("circles", data=Path()).rows) == 7, "a file of that name goes before it"


@pytest.mark.parametrize("added", ["by entry points"], indirect=True)
def test_the_command_line(capsys):
    """Its data set is fitted, sampled with its sampler into its format, and assessed by its metric."""
    fast = ["--preset=fast", *OPTIONS, "--sampler.kind=jump", "--sampler.steps=4", "--device=cpu"]
    assert main(["fit", "circles", "--out", "model.safetensors", *fast]) == 0
    assert main(["sample", "model.safetensors", "--out", "fake.csv", "--samples", "150", "--device=cpu"]) == 0
    capsys.readouterr()
    assert main(["inspect", "fake.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 150
    assert main(["assess", "circles", "fake.csv", "--out", "report", "--no-simulator", "--device=cpu"]) == 0
    kept = json.loads(Path("report/assessment.json").read_text())
    assert [one["label"] for one in kept["measures"] if one["name"] == "reward_gap"] == ["Reward gap"]
    assert "Reward gap" in Path("report/report.html").read_text()
    small = ["--agent.width=8", "--agent.batch-size=8", "--seeds=1", "--device=cpu", "--quiet", "--json"]
    train = ["train", "mirror", "circles", "--out=run", "--no-evaluate", "--updates=200", "--agent.learning-rate=0.05"]
    assert main([*train, "--agent.actor-network=sine", *small]) == 0
    rows = datasets.read("circles").rows
    np.testing.assert_allclose(
        load_policy("run/checkpoint.safetensors").act(rows.observation)[0], -rows.action, atol=0.05
    )
    online = ["--steps=12", "--learning-starts=4", "--evaluate-every=12", "--episodes=1", "--workers=1", "--out=online"]
    assert main(["online", "Pendulum-v1", "--agent=calm", *online, *small]) == 0
    assert json.loads(Path("online/run.json").read_text())["agent"]["exploration_noise"] == 0.01


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
