"""Numbers that depend on a category are measured from their mean in it, and come back."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.data.decoding import Decoder
from synther.data.grouping import FEWEST_ROWS
from synther.data.preparing import Prepared, prepare
from synther.data.scaling import Scaler
from synther.errors import FormatError
from synther.guides import View

from ..support.layouts import decoded

ROWS = 6_000
POINT = np.array([0.0, 5.0, -3.0, 1.0])
"""The mean of the first number in each of four tasks."""
STD = np.array([0.2, 0.2, 1.0, 0.2])
MOVE = np.array([0.05, 1.0, 1.0, 0.2])
"""The std of a step of the second number in each task."""


def world(rows: int = ROWS) -> Transitions:
    """Columns: a task of four, a number that depends on the task, and one that does not and walks."""
    draw = np.random.default_rng(0)
    task, action = draw.integers(0, 4, rows), draw.integers(0, 3, rows)
    number = POINT[task] + STD[task] * draw.normal(size=rows)
    walk = draw.normal(size=rows)
    step = MOVE[task] * draw.normal(size=rows)
    here = np.column_stack([task, number, walk])
    there = np.column_stack([task, POINT[task] + STD[task] * draw.normal(size=rows), walk + step])
    return Transitions(here.astype(np.float32), action, walk.astype(np.float32) ** 3, there.astype(np.float32))


def prepared(rows: Transitions, residuals: str = "linear", scaling: str = "standard") -> Prepared:
    return prepare(rows, scaling, "onehot", True, residuals=residuals)


@pytest.fixture(scope="module")
def real() -> Transitions:
    return world()


@pytest.fixture(scope="module")
def found(real) -> Prepared:
    return prepared(real)


def column(found: Prepared, name: str) -> np.ndarray:
    return found.matrix[:, found.layout.names.index(name)]


def test_numbers_have_mean_0_and_std_1_in_each_category(real, found):
    for kind in range(4):
        own = column(found, "observation[1]")[real.observation[:, 0] == kind]
        assert own.mean() == pytest.approx(0, abs=0.02)
        assert own.std() == pytest.approx(1, abs=0.02)
        own = column(found, "next_observation[2]")[real.observation[:, 0] == kind]
        assert own.std() == pytest.approx(1, abs=0.02)


def test_a_number_that_depends_on_no_category_is_left_alone(found):
    names = found.layout.names
    assert found.scaler.groups is not None
    grouped = {names[one] for one in found.scaler.groups.columns}
    assert grouped == {"observation[1]", "next_observation[1]", "next_observation[2]"}


def test_outcomes_that_vary_far_more_under_some_actions_are_measured_by_action(real):
    action = np.random.default_rng(1).integers(0, 3, ROWS)
    step = np.array([0.02, 0.02, 1.0])[action] * np.random.default_rng(2).normal(size=ROWS)
    there = real.next_observation.copy()
    there[:, 2] = real.observation[:, 2] + step
    found = prepared(replace(real, action=action, next_observation=there))
    for kind in range(3):
        assert column(found, "next_observation[2]")[action == kind].std() == pytest.approx(1, abs=0.03)
    assert column(found, "observation[2]").std() == pytest.approx(1, abs=0.01)


def test_what_two_categories_do_together_is_taken_out_of_an_outcome(real):
    """A line knows what each of them does by itself, which is nothing here."""
    action = np.random.default_rng(1).integers(0, 4, ROWS)
    push = np.where((action + real.observation[:, 0]) % 2 == 0, 1.0, -1.0)
    noise = np.random.default_rng(2).normal(size=ROWS)
    there = real.next_observation.copy()
    there[:, 2] = real.observation[:, 2] + push + 0.1 * noise
    found = prepared(replace(real, action=action, next_observation=there))
    left = np.corrcoef(column(found, "next_observation[2]"), noise)[0, 1]
    assert left > 0.95  # a slope is off by 1 / sqrt(6,000) of the push, and there are four
    np.testing.assert_allclose(decoded(found, found.matrix).next_observation, there, atol=5e-3)


@pytest.mark.parametrize("scaling", ["standard", "quantile", "blend"])
def test_rows_come_back(real, scaling):
    found = prepared(real, scaling=scaling)
    assert found.scaler.groups is not None
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.observation, real.observation, atol=2e-3)
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=5e-3)


def test_a_number_follows_the_category_that_a_row_ends_up_with(real, found):
    """Whatever a network makes of the code, the number has the mean of the nearest category."""
    codes = [place for place, name in enumerate(found.layout.names) if name.startswith("observation[0]=")]
    made = found.matrix.copy()
    made[:, codes] += 0.9 * np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
    back = Decoder(found.layout, found.scaler)(torch.from_numpy(made)).rows
    task = back.observation[:, 0].astype(int)
    assert (task != real.observation[:, 0]).mean() > 0.1
    off = (back.observation[:, 1] - POINT[task]) / STD[task]
    assert off.std() == pytest.approx(1, abs=0.03)


def test_a_goal_that_a_task_decides_is_nearly_exact():
    rows = world()
    goal = np.array([0.3, -2.0, 4.0, 0.0])[rows.observation[:, 0].astype(int)]
    rows.observation[:, 1] = rows.next_observation[:, 1] = goal
    found = prepared(rows)
    noise = 0.1 * np.random.default_rng(0).normal(size=found.matrix.shape).astype(np.float32)
    back = decoded(found, found.matrix + noise)
    np.testing.assert_allclose(back.observation[:, 1], goal, atol=2e-3)


def test_a_rare_category_is_measured_like_all_rows():
    rows = world()
    rows.observation[: FEWEST_ROWS // 2, 0] = 4
    groups = prepared(rows).scaler.groups
    assert groups is not None
    (own,) = (part for part in groups.parts if len(part.codes[0]) == 5 and part.mean[1] > 1 and part.std[4] == 1.0)
    assert own.mean[4] == 0.0


def test_likelihoods_count_what_numbers_were_divided_by(real, found):
    """Against a change of each raw number by a little."""
    raw, layout = found.layout.pack(real[:200]), found.layout
    numbers = [
        layout.names.index(f"{field}[{place}]") for field in ("observation", "next_observation") for place in (1, 2)
    ]
    base, slope = found.scaler.transform(raw), np.zeros(200)
    changes = np.zeros((200, 4, 4))
    for place, number in enumerate(numbers):
        moved = raw.copy()
        moved[:, number] += 1e-4
        changes[:, place] = (found.scaler.transform(moved) - base)[:, numbers] / 1e-4
    slope = np.log(np.abs(np.linalg.det(changes)))
    told = found.scaler.log_slope(raw)
    assert np.ptp(told - slope) < 1e-4
    assert np.ptp(slope) > 1


def test_a_guide_sees_the_numbers_of_rows(real):
    real = replace(real, action=real.next_observation[:, 2:])  # guides need actions that are numbers
    found = prepared(real)
    view = View(found.layout, found.scaler, torch.eye(found.layout.width), torch.device("cpu"))
    scaled = torch.from_numpy(found.matrix[:100])
    np.testing.assert_allclose(view.observation(scaled), real.observation[:100], atol=1e-3)
    slope = torch.zeros_like(scaled)
    view.add_gradient(slope, scaled, "observation", torch.ones(100, 3))
    own = slope[:, found.layout.names.index("observation[1]")]
    np.testing.assert_allclose(own, STD[real.observation[:100, 0].astype(int)], rtol=0.1)


def test_nothing_is_grouped_without_residuals(real):
    assert prepared(real, "none").scaler.groups is None


def test_groups_are_kept_in_files_and_wrong_ones_are_refused(real, found):
    told = json.loads(json.dumps(found.scaler.to_json()))
    assert Scaler.from_json(told) == found.scaler
    for change in ({"column": 99}, {"std": [0.0] * 4}, {"mean": [0.0]}, {"codes": "all"}):
        wrong = json.loads(json.dumps(told))
        wrong["groups"][0] |= change
        with pytest.raises(FormatError, match=r"scaler\.groups"):
            Scaler.from_json(wrong)
