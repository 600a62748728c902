"""Online runs as plain data, executed in their folders and not twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from synther.experiments import online as training
from synther.experiments.results import Result
from synther.experiments.spec import ChangeOptions, Place, execute_all
from synther.experiments.specs import Synthetic

from ..trainings import TINY
from .runs import PLAN

pytestmark = pytest.mark.usefixtures("quick")

RUN = replace(
    PLAN, name="pendulum-synther", utd=3, synthetic=Synthetic("laptop", changes=TINY, samples=20, refresh_every=20),
    steps=30, learning_starts=10, checkpoint_every=10_000, evaluate_every=15, episodes=1,
)  # fmt: skip
REDQ = replace(RUN, name="pendulum-redq", algorithm="redq", utd=2, synthetic=None, agent=RUN.agent | {"batch_size": 10})


def execute(runs, tmp_path):
    place = Place(tmp_path / "models", device="cpu", command="synther paper run x")
    return execute_all(runs, tmp_path / "runs", place, progress=False)


def test_what_is_changed_and_what_is_not():
    changed = RUN.changed(ChangeOptions(updates=5, seeds=1, samples=7, preset="fast"))
    made = Synthetic("fast", changes=TINY, samples=7, refresh_every=20)
    assert changed == replace(RUN, steps=5, seeds=1, synthetic=made)
    assert RUN.changed(ChangeOptions(samples=1_000)) == RUN.changed(ChangeOptions()) == RUN
    shorter = replace(RUN.synthetic, changes={**TINY, "fit": {**TINY["fit"], "steps": 1}})
    assert RUN.changed(ChangeOptions(fit_steps=1)) == replace(RUN, synthetic=shorter)
    assert REDQ.changed(ChangeOptions(preset="fast", samples=1, evaluate_every=3)) == replace(REDQ, evaluate_every=3)


def test_a_run_is_executed_as_it_says_and_once(tmp_path, monkeypatch):
    assert [outcome.error for outcome in execute([RUN, REDQ], tmp_path)] == [None, None]
    described = {}
    for run in (RUN, REDQ):
        folder = tmp_path / "runs" / run.name
        assert json.loads((folder / "run.json").read_text()) == run.to_json()
        assert json.loads((folder / "provenance.json").read_text()) == {"command": "synther paper run x"}
        result = Result.from_json(json.loads(run.result(folder).read_text()))
        assert {arm: [standing.updates for standing in curve] for arm, curve in result.curves.items()} == {
            run.arm: [15, 30]
        }
        described[run.name] = json.loads((folder / "training" / "run.json").read_text())
    sac, redq = (described[run.name] for run in (RUN, REDQ))
    assert (sac["agent"]["num_critics"], sac["agent"]["utd"], sac["agent"]["width"]) == (2, 3, 8)
    assert (redq["agent"]["num_critics"], redq["agent"]["num_min_critics"], redq["agent"]["utd"]) == (10, 2, 2)
    assert (sac["env_id"], sac["steps"], sac["seeds"], sac["learning_starts"]) == ("Pendulum-v1", 30, 2, 10)
    assert (sac["upsampling"]["samples"], sac["upsampling"]["settings"]["network"]["width"]) == (20, 8)
    assert redq["upsampling"] is None
    monkeypatch.setattr(training, "RowActing", pytest.fail)
    assert [outcome.was_done for outcome in execute([RUN, REDQ], tmp_path)] == [True, True]
    (refused,) = execute([RUN.changed(ChangeOptions(updates=40))], tmp_path)
    assert "holds a run with other options: steps (" in str(refused.error)


def test_what_cannot_be_run_leaves_no_folder_and_stops_nobody_else(tmp_path):
    lost = replace(REDQ, name="lost", env_id="Nowhere-v0")
    odd = replace(REDQ, name="odd", agent={"colour": 1})
    errors = [str(outcome.error) for outcome in execute([lost, odd, REDQ], tmp_path)]
    assert "Nowhere-v0" in errors[0]
    assert "unknown option redq.colour: expected one of width" in errors[1]
    assert errors[2] == "None"
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == [REDQ.name]
