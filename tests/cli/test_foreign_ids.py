"""No command imports the module that a file names: not of rows, nor of a model, nor of a run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from synther import Synthesizer, read, write
from synther.envs.rollout import rollout

NAME = "foreign_envs_of_a_command"
ENV_ID = f"{NAME}:ForeignOfACommand-v0"
SOURCE = """
from pathlib import Path
import gymnasium
Path(__file__).with_suffix(".imported").touch()
gymnasium.register("ForeignOfACommand-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv", max_episode_steps=5)
"""
pytestmark = pytest.mark.usefixtures("quick_report")

AGENT = ("--device", "cpu", "--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "8", "--seeds", "1")
SHORT = ("--updates", "10", "--evaluate-every", "10", "--episodes", "1", "--workers", "1")


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """A file that is there once the module has been imported."""
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    gymnasium.registry.pop("ForeignOfACommand-v0", None)
    return tmp_path / f"{NAME}.imported"


@pytest.fixture
def foreign(tmp_path) -> Path:
    path = tmp_path / "foreign.npz"
    write(replace(rollout("Pendulum-v1", 60), env_id=ENV_ID), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet", ""])
def test_reading_and_writing(foreign, marker, tmp_path, suffix):
    rows = read(foreign)
    write(rows, tmp_path / f"again{suffix}")
    assert read(tmp_path / f"again{suffix}").env_id == ENV_ID
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore")
def test_a_minari_spec_with_entry_point_and_wrappers(foreign, marker, tmp_path):
    folder = tmp_path / "minari"
    write(replace(read(foreign), env_id="Pendulum-v1"), folder)
    place = folder / "data" / "metadata.json"
    told = json.loads(place.read_text())
    del told["synther_metadata"]
    wrapper = {"name": "W", "entry_point": f"{NAME}:W", "kwargs": None}
    changed = {"entry_point": f"{NAME}:Env", "additional_wrappers": [wrapper]}
    told["env_spec"] = json.dumps({**json.loads(told["env_spec"]), **changed})
    place.write_text(json.dumps(told))
    assert read(folder).env_id == "Pendulum-v1"
    assert not marker.exists()


def test_commands_on_rows(synther, foreign, marker, tiny, tmp_path):
    fake = tmp_path / "fake.npz"
    write(read(foreign), fake)
    assert synther("inspect", foreign).code == 0
    assert synther("assess", foreign, fake, "--out", tmp_path / "one").code == 0
    assert synther("fit", foreign, "--out", tmp_path / "m.safetensors", *tiny).code == 0
    assert Synthesizer.load(tmp_path / "m.safetensors").layout.env_id == ENV_ID
    assert synther("inspect", tmp_path / "m.safetensors").code == 0
    assert synther("sample", tmp_path / "m.safetensors", "--samples", "20", "--out", tmp_path / "s.npz").code == 0
    drawn = (tmp_path / "m.safetensors", "--samples", "50")
    assert synther("assess", foreign, *drawn, "--out", tmp_path / "two").code == 0
    assert not marker.exists()


def test_train_goes_without_evaluation_and_evaluate_asks_for_the_id(synther, foreign, marker, tmp_path, caplog):
    answer = synther("train", "bc", foreign, "--out", tmp_path / "run", *SHORT, *AGENT)
    assert answer.code == 0
    assert "training without evaluation: the data or run names the environment" in caplog.text
    asked = synther("train", "bc", foreign, "--out", tmp_path / "other", *SHORT, *AGENT, "--env-options", "{}")
    assert asked.code != 0
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**described, "env_id": ENV_ID}))
    answer = synther("evaluate", tmp_path / "run", "--episodes", "1", "--workers", "1")
    assert answer.code != 0
    assert "pass the id yourself, with --env-id" in answer.err
    assert not marker.exists()
    agents = tmp_path / "run" / "checkpoint.safetensors"
    assert synther("evaluate", agents, "--episodes", "1", "--workers", "1", "--env-id", ENV_ID).code == 0
    assert marker.exists()


def test_a_typed_id_is_played_by_train_and_collect(synther, foreign, marker, tmp_path):
    options = (*SHORT, *AGENT, "--env-id", ENV_ID, "--json", "--quiet")
    answer = synther("train", "bc", foreign, "--out", tmp_path / "run", *options)
    assert answer.code == 0, answer.err
    assert np.isfinite(json.loads(answer.out)["arms"]["real"]["final"]["return"]["mean"])
    assert marker.exists()
    collected = synther("collect", ENV_ID, "--policy", "random", "--steps", "12", "--out", tmp_path / "c.npz", "--json")
    assert collected.code == 0, collected.err
    found = json.loads(collected.out)
    assert (found["env_id"], found["episodes"], found["whole"]) == (ENV_ID, 3, 2)
