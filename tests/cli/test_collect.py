"""`synther collect`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import read
from synther.cli import collect
from synther.collect.frames import FrameRecorder
from synther.errors import ConfigError
from synther.pixels.files import read as read_frames
from synther.pixels.frames import Frames

from ..support.files import run_folder

VERB = collect.collect


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SYNTHER_CORES", "1")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def test_an_environment(run):
    found = json.loads(run("Hopper-v4", "--steps", "0.3K", "--out", "minari:mine/hopper-v0", "--json"))
    rows = read("mine/hopper-v0")
    assert (found["data"], found["env_id"], found["rows"]) == ("mine/hopper-v0", "Hopper-v4", 300)
    assert found["episodes"] - found["whole"] in (0, 1)
    assert 0 < found["mean_return"] < 100
    assert 0 < found["score"] < 5
    assert (len(rows), rows.env_id) == (300, "Hopper-v4")


def test_options_reach_the_roll_out(run, rows, monkeypatch):
    asked = []
    whole = replace(rows, timeout=np.arange(300) == 299)

    def kept(*given, **named):
        asked.append((given, named))
        return whole

    monkeypatch.setattr("synther.collect.rows.roll_out", kept)
    run("A-v0", "--out", "a.npz")
    agent = ("--policy", "x.safetensors", "y.safetensors", "--member", 2, "--noise", 0.3, "--stochastic")
    more = ("--seed", 7, "--workers", 3, "--env-options", '{"g": 1}')
    run("A-v0", "--out", "b.npz", "--quiet", "--steps", "2K", *agent, *more)
    named = {"member": None, "noise": None, "stochastic": False, "processes": None}
    other = {"member": 2, "noise": 0.3, "stochastic": True, "processes": 3, "progress": False}
    assert asked == [
        (("A-v0", "random", 100_000), named | {"options": None, "seed": 0, "progress": True}),
        (("A-v0", ("x.safetensors", "y.safetensors"), 2_000), other | {"options": {"g": 1}, "seed": 7}),
    ]
    assert read("b.npz").equals(whole)


def test_a_run(run, rows, tmp_path):
    kept = replace(rows, timeout=np.arange(300) == 299)
    folder = run_folder(tmp_path / "run", kept)
    text = run(folder, "--out", "kept.hdf5")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert [line[0] for line in lines] == ["environment", "rows", "episodes", "return", "data"]
    assert lines[1:3] == [["rows", "300"], ["episodes", "31,", "1", "of", "them", "cut"]]
    assert read("kept.hdf5").equals(kept)
    assert "finished already" in run(folder, "--out", "kept.hdf5")
    Path(".kept.hdf5.made").unlink()
    with pytest.raises(ConfigError, match=r"kept\.hdf5 exists and is not replaced"):
        run(folder, "--out", "kept.hdf5")
    for option, value in (("steps", 5), ("policy", "random"), ("member", 0), ("noise", 0.1), ("seed", 0)):
        with pytest.raises(ConfigError, match=f"--{option} is only for.*is the folder of a run"):
            run(folder, "--out", "new.npz", f"--{option}", value)
    assert not Path("new.npz").exists()


def test_frames(run, monkeypatch, tmp_path):
    """Of an environment and of a run: who is asked for them, what is kept and what is told."""
    asked = []
    episodes = [frames(5), frames(5), frames(3)]

    def kept(*given, **named):
        asked.append((given, named))
        return FrameRecorder({}, lambda done: iter(episodes[len(done) :]))

    for name in ("record_frames", "record_run_frames"):
        monkeypatch.setattr(f"synther.collect.frames.{name}", kept)
    found = json.loads(run("dm_control/walker-walk-v0", "--pixels", "--out", "a.hdf5", "--json"))
    agent = ("--policy", "x.safetensors", "y.safetensors", "--member", 2, "--noise", 0.3, "--stochastic")
    agent += ("--steps", "2K", "--repeat", 4, "--shadow-size", 512, "--seed", 7, "--workers", 3)
    text = run("dm_control/walker-walk-v0", "--pixels", "--quiet", "--out", "b.h5", *agent)
    run(tmp_path, "--pixels", "--shadow-size", 64, "--out", "c.hdf5")
    named = {"member": None, "noise": None, "stochastic": False, "seed": 0, "processes": None, "progress": True}
    other = {"member": 2, "noise": 0.3, "stochastic": True, "seed": 7, "processes": 3, "progress": False, "repeat": 4}
    assert asked == [
        (("dm_control/walker-walk-v0", "random", 100_000), named | {"repeat": 2, "shadow_size": None}),
        (("dm_control/walker-walk-v0", ("x.safetensors", "y.safetensors"), 2_000), other | {"shadow_size": 512}),
        ((tmp_path,), {"shadow_size": 64, "processes": None, "progress": True}),
    ]
    whole = {"frames": 13, "rows": 10, "episodes": 3, "whole": 2, "mean_return": 4.0, "std": 0.0, "score": None}
    assert found == {"data": "a.hdf5", "env_id": "a-v0", **whole}
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    assert [(name, value.strip()) for name, value in lines] == [
        ("environment", "a-v0"),
        ("frames", "13"),
        ("rows", "10"),
        ("episodes", "3, 1 of them cut"),
        ("return", "4.0 ± 0.0"),
        ("data", "b.h5"),
    ]
    assert len(read_frames("c.hdf5")) == 13


def frames(records: int) -> Frames:
    """One episode, a reward of 1 for every decision."""
    first = np.arange(records) == 0
    image = np.zeros((records, 3, 4, 4), np.uint8)
    return Frames(image, np.zeros((records, 1)), np.ones(records), np.ones(records), first, env_id="a-v0")
