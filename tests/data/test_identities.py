"""Columns that follow from others come back as these say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.data import layout_json
from synther.data.kinds import Derived
from synther.data.layout import Layout
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import SyntherError
from synther.guides import View

from ..support.layouts import decoded, through_json

ROWS = 4_000


def moment(seed: int) -> np.ndarray:
    """Two positions, a part and the rest of a whole, a position again, how far it is from the other, both shares."""
    draw = np.random.default_rng(seed)
    place, part = draw.normal(size=(ROWS, 2)), draw.uniform(0, 1, ROWS)
    return np.c_[place, part, draw.normal(size=ROWS), place[:, 0], place[:, 1] - place[:, 0], 1 - part]


def rows(dtype: type = np.float32) -> Transitions:
    """Column 3 of the next observation is the action."""
    draw = np.random.default_rng(9)
    here, there, action = moment(1), moment(2), draw.uniform(-1, 1, (ROWS, 1))
    there[:, 3] = action[:, 0]
    return Transitions(
        here.astype(dtype), action.astype(dtype), draw.normal(size=ROWS), there.astype(dtype), np.zeros(ROWS, bool)
    )


def prepared(real: Transitions, residuals: str = "linear") -> Prepared:
    return prepare(real, "standard", "onehot", True, residuals=residuals)


def derived(layout: Layout, field: str) -> list[int]:
    return [place.source.start for place in layout.places if place.field == field and isinstance(place.kind, Derived)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_that_say_the_same_hold_in_whatever_row(dtype):
    real = rows(dtype)
    found = prepared(real)
    assert derived(found.layout, "observation") == [4, 5, 6]
    assert derived(found.layout, "next_observation") == [3, 4, 5, 6]
    assert through_json(found.layout) == found.layout
    noise = np.random.default_rng(0).normal(size=found.matrix.shape).astype(np.float32)
    made = decoded(found, found.matrix + 0.3 * noise)
    for side in (made.observation, made.next_observation):
        assert side.dtype == dtype
        assert np.array_equal(side[:, 4], side[:, 0])
        np.testing.assert_allclose(side[:, 5], side[:, 1] - side[:, 0], atol=1e-5)
        np.testing.assert_allclose(side[:, 6], 1 - side[:, 2], atol=1e-6)
    assert np.array_equal(made.next_observation[:, 3], made.action[:, 0])
    back = found.layout.unpack(found.layout.pack(real))
    np.testing.assert_allclose(back.observation, real.observation, atol=1e-6)
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_counts_of_a_constant_sum_keep_it_in_whatever_row(dtype):
    draw = np.random.default_rng(0)
    parts = draw.multinomial(1000, [0.7, 0.2, 0.1], 2 * ROWS)
    here, there = parts[:ROWS].astype(dtype), parts[ROWS:].astype(dtype)
    real = Transitions(here, draw.uniform(-1, 1, (ROWS, 1)), draw.normal(size=ROWS), there, np.zeros(ROWS, bool))
    found = prepared(real)
    assert derived(found.layout, "observation") == derived(found.layout, "next_observation") == [2]
    assert np.array_equal(decoded(found, found.matrix).next_observation, there)
    noise = draw.normal(size=found.matrix.shape).astype(np.float32)
    made = decoded(found, found.matrix + 0.3 * noise)
    for side in (made.observation, made.next_observation):
        assert side.dtype == dtype
        assert (side.sum(1) == 1000).all()
        assert side.min() >= 0
        assert not np.array_equal(side, here)


@pytest.mark.parametrize("count", [4, 8])
def test_actions_that_are_shares_of_a_whole_stay_so_in_whatever_row(count):
    draw = np.random.default_rng(0)
    shares = draw.dirichlet([2] * count, ROWS).astype(np.float32)
    here, there = draw.normal(size=(2, ROWS, 3)).astype(np.float32)
    real = Transitions(here, shares, draw.normal(size=ROWS), there, np.zeros(ROWS, bool))
    found = prepared(real)
    assert derived(found.layout, "action") == [count - 1]
    assert through_json(found.layout) == found.layout
    assert np.allclose(decoded(found, found.matrix).action, shares, atol=1e-5)
    made = decoded(found, found.matrix + 0.5 * draw.normal(size=found.matrix.shape).astype(np.float32)).action
    assert np.abs(made.sum(1) - 1).max() < 1e-5
    assert made.min() >= 0
    assert made.max() <= 1
    # A guide sees the whole action. A gradient that asks for more of the computed share takes from the others.
    view = View(found.layout, found.scaler, torch.eye(found.layout.width), torch.device("cpu"))
    scaled = torch.from_numpy(found.matrix[:5])
    assert torch.allclose(view.action(scaled), torch.from_numpy(shares[:5]), atol=1e-5)
    slope = torch.zeros_like(scaled)
    view.add_gradient(slope, scaled, "action", torch.eye(count)[-1:].repeat(5, 1))
    assert (slope[:, found.layout.columns_of("action")] < 0).all()


def test_a_part_of_a_column_is_exactly_0_where_that_is():
    draw = np.random.default_rng(0)
    force = np.maximum(draw.normal(size=(2 * ROWS, 1)), 0)
    states = np.c_[force, 0.13802471934 * force, draw.normal(size=len(force))].astype(np.float32)
    action = draw.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
    real = Transitions(states[:ROWS], action, draw.normal(size=ROWS), states[ROWS:], np.zeros(ROWS, bool))
    found = prepared(real)
    assert derived(found.layout, "observation") == [1]
    made = decoded(found, found.matrix)
    assert np.array_equal(made.observation[:, 1] == 0, real.observation[:, 0] == 0)


def test_a_constant_whose_mean_is_rounded_hides_nothing():
    """The cosine of a right angle is 6e-17, and so is the mean of many of them, nearly."""
    real = rows(np.float64)
    real = replace(real, observation=with_column(real.observation), next_observation=with_column(real.next_observation))
    assert np.concatenate([real.observation, real.next_observation]).std(0)[0] > 0
    assert derived(prepared(real).layout, "observation") == [5, 6, 7]


def with_column(states: np.ndarray) -> np.ndarray:
    return np.c_[np.full(len(states), np.cos(np.pi / 2)), states]


def test_identities_can_be_read():
    told = prepared(rows()).layout.computed
    assert set(told) >= {"observation[4] = observation[0]", "observation[6] = 1 - observation[2]"}
    assert "next_observation[5] = -next_observation[0] + next_observation[1]" in told
    assert "next_observation[3] = action[0]" in told


def test_one_row_that_differs_is_enough_to_keep_a_column():
    real = rows()
    real.observation[1234, 6] += 0.1
    real.next_observation[77, 3] += 0.1
    layout = prepared(real).layout
    assert derived(layout, "observation") == [4, 5]
    assert derived(layout, "next_observation") == [4, 5]


def test_a_row_that_differs_is_seen_in_large_numbers_too():
    """Squares of these are infinite in float32. Rules are found in every fifth row here, and then have to hold in all
    of them."""
    real = Transitions.concatenate([rows(np.float64)] * 5)
    here, there = ((1e25 * side).astype(np.float32) for side in (real.observation, real.next_observation))
    large = Transitions(here, real.action, real.reward, there, real.terminal)
    assert 5 in derived(prepared(large).layout, "observation")
    there[1, 5] += np.float32(1e24)
    assert 5 not in derived(prepared(large).layout, "observation")


def test_special_values_are_not_left_to_a_sum():
    """Of three shares the last is often 0: the first follows from the other two."""
    draw = np.random.default_rng(2)

    def seen() -> np.ndarray:
        last = np.where(draw.random(ROWS) < 0.1, 0.0, draw.uniform(0, 0.3, ROWS))
        middle = draw.uniform(0, 0.7, ROWS)
        return np.c_[1 - middle - last, middle, last]

    action = draw.uniform(-1, 1, (ROWS, 1))
    layout = prepared(Transitions(seen(), action, action[:, 0], seen(), np.zeros(ROWS, bool))).layout
    assert derived(layout, "observation") == derived(layout, "next_observation") == [1]


def test_a_small_difference_of_two_columns_is_not_left_to_them():
    """A speed is the change of a place. The place is what follows from the others: its error would drown the speed."""
    draw = np.random.default_rng(4)

    def seen(place: np.ndarray, speed: np.ndarray) -> np.ndarray:
        return np.c_[place - 0.01 * speed, place, speed]

    place, speed, new = draw.normal(size=(3, ROWS))
    action = draw.uniform(-1, 1, (ROWS, 1))
    there = seen(place + 0.01 * new, new)
    layout = prepared(Transitions(seen(place, speed), action, speed, there, np.zeros(ROWS, bool))).layout
    assert derived(layout, "observation") == [1]
    (one,) = (one for one in layout.identities if one.field == "observation")
    assert {parent.column: parent.weight for parent in one.parents} == pytest.approx({0: 1.0, 2: 0.01})


def test_nothing_is_left_out_without_residuals_or_where_nothing_follows():
    real = rows()
    assert prepared(real, "none").layout.identities == ()
    noisy = real.observation + 1e-3 * np.random.default_rng(0).normal(size=real.observation.shape)
    real = Transitions(noisy, real.action, real.reward, real.next_observation * 1.001, real.terminal)
    assert prepared(real).layout.identities == ()


def test_a_guide_sees_what_follows_and_its_gradient_reaches_what_it_follows_from():
    real = rows(np.float64)
    found = prepared(real)
    view = View(found.layout, found.scaler, torch.eye(found.layout.width), torch.device("cpu"))
    scaled = torch.from_numpy(found.matrix[:50])
    np.testing.assert_allclose(view.observation(scaled).numpy(), real.observation[:50], atol=1e-4)
    wanted = torch.zeros(50, 7)
    wanted[:, 5] = 1.0  # of column 1 less column 0
    slope = torch.zeros_like(scaled)
    view.add_gradient(slope, scaled, "observation", wanted)
    first, second = (found.layout.names.index(f"observation[{column}]") for column in (0, 1))
    torch.testing.assert_close(slope[:, second], torch.full((50,), found.scaler.scale[second]))
    torch.testing.assert_close(slope[:, first], torch.full((50,), -found.scaler.scale[first]))


def gates(seed: int) -> np.ndarray:
    """The height of a gate among a few, with 0 for none; its upper edge, 1 for none; half of the heights; a number."""
    draw = np.random.default_rng(seed)
    height = draw.choice([0.0, 0.2, 0.25, 0.3, 0.4, 0.7], size=ROWS, p=[0.85, 0.05, 0.045, 0.025, 0.025, 0.005])
    return np.c_[height, np.where(height == 0, 1.0, height + 0.15), height > 0.22, draw.normal(size=ROWS)]


def test_other_names_for_a_few_values_come_back_with_these():
    draw = np.random.default_rng(0)
    action, reward, flags = draw.uniform(-1, 1, (ROWS, 1)), draw.normal(size=ROWS), np.zeros(ROWS, bool)
    real = Transitions(gates(1).astype(np.float32), action, reward, gates(2).astype(np.float32), flags)
    found = prepared(real)
    # The third column follows from the first, but not the first from the third.
    assert derived(found.layout, "observation") == derived(found.layout, "next_observation") == [1]
    assert found.layout.computed[0] == "observation[1] follows from observation[0]"
    assert through_json(found.layout) == found.layout
    np.testing.assert_array_equal(decoded(found, found.matrix).observation[:, :3], real.observation[:, :3])
    noise = np.random.default_rng(0).normal(size=found.matrix.shape).astype(np.float32)
    made = decoded(found, found.matrix + 0.5 * noise)
    known = {tuple(pair) for pair in real.observation[:, :2].tolist()}
    for side in (made.observation, made.next_observation):
        assert {tuple(pair) for pair in side[:, :2].tolist()} <= known
    view = View(found.layout, found.scaler, torch.eye(found.layout.width), torch.device("cpu"))
    seen = view.observation(torch.from_numpy(found.matrix[:200])).numpy()
    np.testing.assert_allclose(seen[:, 1], real.observation[:200, 1], atol=1e-6)
    real.next_observation[-1, 1] = 0.7  # a fifth name, for a value that has one
    assert derived(prepared(real).layout, "observation") == []


def test_goals_are_not_other_names_for_their_first_coordinates():
    """Thirty of them. An action that goes towards one could not be told from its first coordinate."""
    draw = np.random.default_rng(0)
    goals = draw.uniform(-1, 1, (30, 2))
    here, there = (np.c_[goals[draw.integers(30, size=ROWS)], draw.normal(size=ROWS)] for _ in range(2))
    real = Transitions(here, draw.uniform(-1, 1, (ROWS, 1)), draw.normal(size=ROWS), there, np.zeros(ROWS, bool))
    assert prepared(real).layout.identities == ()


@pytest.mark.parametrize(
    "values", [[[0.0, 1.0], [0.0, 2.0]], [[1.0, 1.0], [0.0, 2.0]], [[0.0, None]], [[0.0]], "none", [[0.0, 1e999]]]
)
def test_files_with_wrong_names_of_values_are_refused(values):
    told = layout_json.to_json(prepared(rows()).layout)
    told["identities"][0] |= {"values": values}
    with pytest.raises(SyntherError, match=r"layout\.identities"):
        layout_json.from_json(json.loads(json.dumps(told)))


@pytest.mark.parametrize(
    "change",
    [
        {"column": 99},
        {"field": "reward"},
        {"parents": [["observation", 50, 1.0]]},
        {"parents": "none"},
        {"level": None},
        {"column": 0},
    ],
)
def test_files_with_a_wrong_identity_are_refused(change):
    told = layout_json.to_json(prepared(rows()).layout)
    told["identities"][0] |= change
    with pytest.raises(SyntherError, match=r"layout\.identities"):
        layout_json.from_json(json.loads(json.dumps(told)))
