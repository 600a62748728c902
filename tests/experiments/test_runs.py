"""Trainings as data: written down, sent on, executed once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import datasets, write
from synther.agents.agent import Agent
from synther.experiments.offline import material_of
from synther.experiments.results import Result
from synther.experiments.spec import ChangeOptions, Place, Recipe, execute_all
from synther.experiments.specs import OfflineRun
from synther.progress import Silent
from synther.synthesizer import Synthesizer

from . import trainings
from .pendulum import swings

TINY = {**trainings.TINY, "data": {"threshold": "half"}}
RUN = replace(
    trainings.PLAN,
    name="swings-td3_bc",
    data="swings",
    arms={"real": {"real": 1.0}, "half": {"synthetic": 0.5, "real": 0.5}, "noise": {"additive": 1.0}},
    sources={"synthetic": Recipe(samples=40, preset="laptop", changes=TINY), "additive": Recipe("additive", None)},
    fraction=0.5,
    updates=20,
    episodes=2,
)


@pytest.fixture
def place(tmp_path, quick) -> Place:
    """With data, and evaluations that start no process."""
    write(swings(), tmp_path / "data" / "swings.npz")
    return Place(tmp_path / "models", tmp_path / "data", device="cpu", command="synther paper run x")


def execute(run: OfflineRun, tmp_path: Path, place: Place) -> str | None:
    """What went wrong."""
    (outcome,) = execute_all([run], tmp_path / "runs", place, progress=False)
    return outcome.error


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_what_is_changed_and_what_is_not():
    changed = RUN.changed(ChangeOptions(updates=5, samples=30, preset="fast"))
    synthetic = Recipe(samples=30, preset="fast", changes=TINY)
    noise = Recipe("additive", None, most=30)
    assert changed == replace(RUN, updates=5, sources={"synthetic": synthetic, "additive": noise})
    assert RUN.changed(ChangeOptions(samples=1_000)).sources["synthetic"] == RUN.sources["synthetic"]
    assert RUN.changed(ChangeOptions()) == RUN.changed(ChangeOptions(fit_steps=10**6)) == RUN
    shorter = RUN.changed(ChangeOptions(fit_steps=2)).sources
    assert shorter["synthetic"].settings() == RUN.sources["synthetic"].settings().changed(fit={"steps": 2})
    assert shorter["additive"] == RUN.sources["additive"]


@pytest.mark.parametrize(("most", "expected"), [(None, 12), (30, 12), (5, 5)])
def test_as_many_rows_as_there_are_real_ones_or_as_was_asked_for(most, expected, place):
    real = swings()[:12]
    assert RUN.changed(ChangeOptions(samples=most)).sources["additive"].source(real, place, 0).samples == expected


@pytest.mark.parametrize("algorithm", ["td3_bc", "iql"])
def test_a_longer_run_goes_on_unless_its_learning_rate_has_fallen(algorithm, tmp_path, place):
    short = replace(RUN, algorithm=algorithm)
    longer = short.changed(ChangeOptions(updates=2 * RUN.updates))
    assert execute(short, tmp_path, place) is None
    folder = tmp_path / "runs" / RUN.name
    told = execute(longer, tmp_path, place)
    if algorithm == "iql":
        assert told is not None
        assert f"decay_updates {RUN.updates}, not {longer.updates}" in told
    kept = short if algorithm == "iql" else longer
    assert read(folder / "run.json") == kept.to_json()
    assert Result.read(RUN.result(folder)).updates == kept.updates


def test_all_arms_train_together_on_a_share_of_the_rows_and_once(tmp_path, place, monkeypatch):
    assert execute(RUN, tmp_path, place) is None
    folder = tmp_path / "runs" / RUN.name
    assert sorted(file.name for file in folder.iterdir()) == ["provenance.json", "run.json", "training"]
    assert read(folder / "run.json") == RUN.to_json()
    provenance = {"command": "synther paper run x", "data": "read from swings.npz", "rows": 30}
    assert read(folder / "provenance.json") == provenance
    result = Result.from_json(read(RUN.result(folder)))
    assert {arm: len(curve) for arm, curve in result.curves.items()} == {"real": 2, "half": 2, "noise": 2}
    described = read(folder / "training" / "run.json")
    assert described["synthetic"]["additive"]["samples"] == 30  # as many as there are real ones
    assert (described["agent"]["width"], described["episodes"], described["env_id"]) == (8, 2, "Pendulum-v1")

    older = read(folder / "run.json")
    for recipe in older["sources"].values():
        del recipe["most"]  # an option that did not exist yet
    (folder / "run.json").write_text(json.dumps(older))
    for owner, name in ((datasets, "read"), (Agent, "train"), (Synthesizer, "fit")):
        monkeypatch.setattr(owner, name, pytest.fail)
    (outcome,) = execute_all([RUN], tmp_path / "runs", place, progress=False)
    assert (outcome.error, outcome.was_done) == (None, True)
    refused = execute(RUN.changed(ChangeOptions(updates=5)), tmp_path, place)
    assert "other options: updates" in str(refused)


def test_algorithms_share_the_generator_and_a_kill_loses_no_fit(tmp_path, place, monkeypatch):
    def killed(self, *how):
        raise KeyboardInterrupt

    other = replace(RUN, name="swings-bc", algorithm="bc")
    with monkeypatch.context() as patched:
        patched.setattr(Agent, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(RUN, tmp_path, place)
    monkeypatch.setattr(Synthesizer, "fit", pytest.fail)
    assert execute(RUN, tmp_path, place) is None
    assert execute(other, tmp_path, place) is None
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_rows_are_made_of_the_rewards_in_the_data_and_changed_then(tmp_path, place):
    found = datasets.read("swings", data=place.data)
    found = replace(found, rewards={"iql": lambda rows: (10.0, -float(len(rows)))})
    plain, changed = (
        material_of(replace(RUN, algorithm=algorithm), found, place).tables(tmp_path, Silent())
        for algorithm in ("td3_bc", "iql")
    )
    assert [len(table) for table in changed] == [30, 40, 30]
    for one, other in zip(plain, changed, strict=True):
        np.testing.assert_allclose(other.reward, 10 * one.reward - 60, rtol=1e-6)
        np.testing.assert_array_equal(other.observation, one.observation)
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_data_that_cannot_be_found_stops_nobody_else(tmp_path, place):
    lost = replace(RUN, name="lost", data="walker2d-medium")
    wrong = replace(RUN, name="wrong", algorithm="sac")
    odd = replace(RUN, name="odd", agent={"colour": 1})
    outcomes = execute_all([lost, wrong, odd, RUN], tmp_path / "runs", place, progress=False)
    assert [outcome.error is None for outcome in outcomes] == [False, False, False, True]
    assert "walker2d-medium" in str(outcomes[0].error)
    assert "'sac'" in str(outcomes[1].error)
    assert "td3_bc.colour" in str(outcomes[2].error)
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == [RUN.name]


def test_options_are_those_of_the_run_then_of_the_data_then_defaults(tmp_path, place, monkeypatch):
    found = datasets.read("swings", data=place.data)
    changes = {"iql": {"expectile": 0.9, "beta": 10.0, "depth": 3}}
    monkeypatch.setattr(datasets, "read", lambda *given, **named: replace(found, agent=changes, episodes=3))
    run = replace(RUN, algorithm="iql", arms={"real": {"real": 1.0}}, sources={}, episodes=None)
    assert execute(run, tmp_path, place) is None
    described = read(tmp_path / "runs" / run.name / "training" / "run.json")
    agent = described["agent"]
    assert (agent["expectile"], agent["beta"], agent["depth"], agent["tau"]) == (0.9, 10.0, 1, 0.005)
    assert agent["decay_updates"] == 20  # over the whole training
    assert described["episodes"] == 3
