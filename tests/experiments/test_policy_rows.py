"""Rows with the actions of agents that are trained first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import Transitions, write
from synther.agents.agent import Agent
from synther.compare.generators import Plan
from synther.data.spaces import Box
from synther.experiments.offline import PolicyRows
from synther.experiments.sources import Generated, TrainingData
from synther.experiments.spec import ChangeOptions, Place, PolicyGuidance, Recipe, execute_all
from synther.presets import preset
from synther.progress import Silent

from . import trainings
from .pendulum import swings

LEARNING = {"width": 32, "batch_size": 64, "learning_rate": 3e-3}
AGENTS = replace(trainings.PLAN, algorithm="bc", agent=LEARNING, updates=400, evaluate=False, evaluate_every=100)
SMALL = {"network": {"width": 48, "depth": 2}, "fit": {"steps": 250, "batch_size": 128, "learning_rate": 4e-3}}


def followed(count: int = 2_000) -> Transitions:
    """Actions that are half of the first observation, with noise of 0.4."""
    draw = np.random.default_rng(0)
    s = draw.normal(size=(count, 2)).astype(np.float32)
    a = (0.5 * s[:, :1] + 0.4 * draw.normal(size=(count, 1))).clip(-3, 3).astype(np.float32)
    space = (Box.uniform(-3, 3, 1),)
    return Transitions(s, a, s[:, 0], s + 0.1 * a, np.zeros(count, bool), action_space=space)


def made(store: Path, strength: float) -> PolicyRows:
    real = followed()
    source = Generated("diffusion", real, Plan(preset("laptop", **SMALL), 1_000, device="cpu"), store)
    return PolicyRows(source, AGENTS, TrainingData(real), PolicyGuidance(strength, 0.1))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


def test_actions_are_those_of_the_agents_with_the_asked_for_noise(store):
    plain, rows = (made(store, strength).rows(None, Silent()) for strength in (0.0, 1.0))
    about = [each.action[:, 0] - 0.5 * each.observation[:, 0] for each in (plain, rows)]
    assert about[0].std() == pytest.approx(0.4, abs=0.06)
    assert about[1].std() == pytest.approx(0.1, abs=0.06)
    assert np.abs(about[1].mean()) < 0.05


def test_without_strength_rows_are_plain_and_nobody_is_trained(store, monkeypatch):
    monkeypatch.setattr(Agent, "train", pytest.fail)
    source = made(store, 0.0)
    assert source.rows(None, Silent()).equals(source.source.rows(None, Silent()))


def test_killed_in_the_training_of_agents_it_gives_the_same_rows(store, tmp_path, monkeypatch, saved_every_time):
    whole = made(store, 0.5).rows(None, Silent())
    with monkeypatch.context() as patched:
        patched.setattr(Generated, "rows", lambda *given: pytest.fail("the agents were to be killed before"))
        trainings.stop(lambda: made(tmp_path, 0.5).rows(None, Silent()), Agent, "train", True, 3)
    assert made(tmp_path, 0.5).rows(None, Silent()).equals(whole)
    monkeypatch.setattr(Agent, "train", pytest.fail)
    again = made(tmp_path, 1.0).rows(None, Silent())  # with the same agents
    assert not again.equals(whole)


MADE = Recipe(samples=40, preset="laptop", changes=trainings.TINY, policy=PolicyGuidance(updates=10, seeds=2))
RUN = replace(trainings.PLAN, name="guided", data="swings", algorithm="iql", updates=20, episodes=2)
RUN = replace(RUN, arms={"policy": {"policy": 1.0}}, sources={"policy": MADE})


def test_a_run_is_changed_as_a_whole():
    changed = RUN.changed(ChangeOptions(updates=5, seeds=1)).sources["policy"].policy
    assert changed == PolicyGuidance(updates=5, seeds=1)


@pytest.mark.parametrize("learns_from", ["real", "synthetic"])
def test_a_run_trains_the_agents_the_generator_and_new_agents(learns_from, tmp_path, quick):
    write(swings(), tmp_path / "data" / "swings.npz")
    place = Place(tmp_path / "models", tmp_path / "data", device="cpu")
    guidance = replace(RUN.sources["policy"].policy, learns_from=learns_from)
    run = replace(RUN, sources={"policy": replace(RUN.sources["policy"], policy=guidance)})
    (outcome,) = execute_all([run], tmp_path / "runs", place, progress=False)
    assert outcome.error is None
    (agents,) = (tmp_path / "models").glob("agents-*")
    described = json.loads((agents / "run.json").read_text())
    assert (described["algorithm"], described["updates"], described["seeds"]) == ("iql", 10, 2)
    assert list(described["arms"]) == [learns_from]
    done = json.loads((tmp_path / "runs" / run.name / "run.json").read_text())
    ((where, recipe, _),) = run.generators(done, tmp_path / "runs" / run.name)
    assert (where, recipe) == (("sources", "policy"), run.sources["policy"])
