"""When legs end, what is measured and refreshed then, and what a plan refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther.experiments.record import Schedule
from synther.experiments.refresh import for_environment
from synther.experiments.specs import OnlineRun, Synthetic
from synther.presets import PRESETS
from synther.replay.columns import Columns
from synther.replay.experience import Experience

from .runs import LEGS, PLAN, SYNTHETIC, TIMES


def test_legs_end_at_checkpoints_at_refreshes_and_at_the_end():
    assert PLAN.segments_until(55) == LEGS
    assert replace(PLAN, synthetic=None).segments_until(55) == [15, 30, 45, 55]
    assert [step for step in LEGS if PLAN.is_refreshed(step)] == [20, 40]
    assert not replace(PLAN, steps=40).is_refreshed(40)  # nobody would learn from it
    assert not replace(PLAN, synthetic=None).is_refreshed(20)
    adapting = replace(PLAN, synthetic=replace(SYNTHETIC, refresh="auto"))  # which looks five times as often
    assert adapting.segments_until(55) == sorted({*range(4, 55, 4), 15, 30, 45, 55})


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"steps": 10, "learning_starts": 9, "synthetic": None}, None),
        ({"steps": 10, "learning_starts": 10, "synthetic": None}, "nothing is learned"),
        ({"steps": 20}, "--refresh-every"),
        ({"steps": 21}, None),
        ({"steps": 20, "synthetic": replace(SYNTHETIC, refresh="auto")}, "--refresh-every"),
        ({"steps": 21, "synthetic": replace(SYNTHETIC, refresh="auto")}, None),
    ],
    ids=str,
)
def test_what_comes_to_nothing_is_told(change, doubt):
    found = list(replace(PLAN, **change).doubts())
    assert len(found) == (doubt is not None)
    assert doubt is None or doubt in found[0]


def test_the_last_step_is_measured_too():
    measured = Schedule(10, 55)
    assert measured.until(55) == TIMES
    assert measured.until(54) == TIMES[:-1]
    assert measured.until(9) == []
    assert replace(measured, last=60).until(60) == [10, 20, 30, 40, 50, 60]
    assert [step for step in range(1, 56) if measured.includes(step)] == TIMES
    assert [measured.after(step) for step in (0, 9, 10, 49, 50, 54)] == [10, 10, 20, 50, 55, 55]


def test_rewards_of_the_suite_are_not_scaled_unless_they_are_residuals():
    paper, best = PRESETS["paper"], PRESETS["best"]
    assert for_environment(paper, "Walker2d-v4") is paper
    changed = for_environment(paper, "dm_control/cheetah-run-v0")
    assert changed.data.scaling == {"reward": "none", "default": "standard"}
    assert changed.changed(data={"scaling": "standard"}) == paper
    asked = paper.changed(data={"scaling": {"reward": "minmax"}})
    assert for_environment(asked, "dm_control/cheetah-run-v0") == asked
    assert for_environment(best, "dm_control/cheetah-run-v0") is best


def test_the_defaults_are_the_papers():
    plan = OnlineRun("a", "A-v0", synthetic=Synthetic("paper"))
    found = (plan.steps, plan.seeds, plan.learning_starts, plan.capacity, plan.episodes)
    assert found == (100_000, 6, 5_000, 10**6, 10)
    assert (plan.arm, replace(plan, algorithm="redq", synthetic=None).arm) == ("sac_synther", "redq")
    assert (plan.synthetic.refresh_every, plan.synthetic.samples, plan.synthetic.ratio) == (10_000, 10**6, 0.5)


COLUMNS = Columns(1, 1)


def step(number: int) -> np.ndarray:
    """Of two seeds: observation, action, reward, terminal, next observation."""
    return np.array([[number, 0, 0, number == 3, number + 1], [100 + number, 0, 0, 0, 101 + number]], np.float32)


@pytest.fixture
def five(tmp_path: Path) -> Experience:
    """Steps, of which the first two are in a file."""
    found = Experience(tmp_path, COLUMNS)
    for number in range(5):
        found.append(step(number), np.array([False, number == 1]))
        if number == 1:
            found.save()
    return found


def test_an_end_in_a_terminal_state_is_no_cut(five: Experience) -> None:
    rows = five.transitions("Made-v0")
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]  # seed after seed
    assert rows.timeout is not None
    assert np.flatnonzero(rows.timeout).tolist() == [4, 6, 9]
    terminal = Experience(five.folder, COLUMNS)
    terminal.append(step(3), np.array([False, False]))
    assert terminal.transitions("Made-v0").timeout.tolist() == [False, True]
