from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther.assess.bounds import Bounds, action_scale, actions_outside, rescaled_actions, share_outside
from synther.assess.columns import BINS, bin_edges, describe, shares
from synther.assess.fidelity import column_names
from synther.data.spaces import Binary, Box, Discrete
from synther.data.transitions import Transitions


def test_whole_numbers_have_a_bin_each() -> None:
    real, synthetic = np.array([0, 1, 1, 3]), np.array([1, 4])
    edges = bin_edges(real, synthetic)
    assert edges.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert shares(real, edges) == (0.25, 0.5, 0, 0.25, 0)
    assert len(bin_edges(np.arange(60), np.arange(60))) == 61
    assert len(bin_edges(np.arange(5_000), np.arange(5_000))) == BINS + 1


def test_a_column_of_one_value_and_of_nearly_one() -> None:
    same = np.full(5, 0.3)
    assert (np.diff(bin_edges(same, same)) > 0).all()
    nearly = np.append(np.zeros(10_000), [2.5])
    assert bin_edges(nearly, nearly)[[0, -1]].tolist() == [0, 2.5]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_any_values_have_bins_that_hold_them_all(values: list[float]) -> None:
    column = np.array(values)
    edges = bin_edges(column, column[:1])
    assert np.isfinite(edges).all()
    assert (np.diff(edges) >= 0).all()
    assert sum(shares(column, edges)) == pytest.approx(1)


def test_describe() -> None:
    rng = np.random.default_rng(0)
    observation = rng.normal(3, 2, (400, 2)).astype(np.float32)
    real = Transitions(observation, rng.integers(0, 3, 400), np.full(400, 0.1, np.float32), observation)
    synthetic = Transitions(observation + 100, rng.integers(0, 4, 400), np.zeros(400, np.float32), observation)
    width = len(column_names(real))
    columns = describe(real, synthetic, [0.5] * width, [0.9] * width)
    first, action, reward = columns[0], columns[2], columns[3]
    assert [column.name for column in columns] == column_names(real)
    assert (first.similarity, first.similarity_real, first.outside) == (0.5, 0.9, 1)
    assert first.real_mean == pytest.approx(observation[:, 0].mean(dtype=float))
    assert first.synthetic_mean - first.real_mean == pytest.approx(100, rel=1e-5)
    assert first.real_std == pytest.approx(observation[:, 0].std(dtype=float))
    assert (action.name, len(action.edges)) == ("action", 5)
    assert action.outside == pytest.approx(action.synthetic_shares[3])
    assert (reward.real_std, reward.outside) == (0, 1)


def rows(count: int = 200, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        observation=rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        action=rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        reward=rng.normal(size=count),
        next_observation=rng.uniform(-2, 2, (count, 2)).astype(np.float32),
    )


def test_actions_of_a_known_and_of_an_unknown_box() -> None:
    real = replace(rows(), action_space=(Box.uniform(-2, 2, 2),))
    wild = rows()
    wild.action[:50, 0] = 1.5
    wild.action[:20, 1] = -3
    assert actions_outside(real, wild) == pytest.approx(0.1)
    assert actions_outside(replace(real, action_space=None), wild) == pytest.approx(0.25)
    assert actions_outside(replace(real, action_space=(Box.uniform(-math.inf, math.inf, 2),)), wild) == 0.25


@pytest.mark.parametrize("values", [np.full((200, 2), 0.1), 1e9 + 0.1 * np.arange(400).reshape(200, 2)])
def test_what_float32_cannot_tell_apart_is_not_outside(values: np.ndarray) -> None:
    def seen(observation: np.ndarray) -> Transitions:
        return replace(rows(), observation=observation, next_observation=observation)

    fine, coarse = seen(values), seen(values.astype(np.float32))
    for real, other in ((fine, coarse), (coarse, fine)):
        assert share_outside(Bounds.of(real), other, "observation") == 0
        assert share_outside(Bounds.of(real), seen(1.01 * other.observation), "observation") == 1


def test_discrete_actions() -> None:
    real = replace(rows(100), action=np.arange(100) % 4, action_space=(Discrete(5, start=-1),))
    assert actions_outside(real, replace(real, action=np.arange(100) % 5, action_space=None)) == 0.2


def test_observations_of_both_ends_of_a_step_share_their_bounds() -> None:
    real, wild = rows(), rows()
    wild.observation[:10, 0] = 1.9  # beyond every observation, within the next ones
    wild.next_observation[:30, 1] = 5
    bounds = Bounds.of(real)
    assert share_outside(bounds, wild, "observation") == 0
    assert share_outside(bounds, wild, "observation", "next_observation") == pytest.approx(0.15)
    assert bounds.outside(wild, "next_observation").mean(axis=0).tolist() == pytest.approx([0, 0.15])
    declared = Bounds.of(replace(real, observation_space=(Box.uniform(-9, 9, 1), Binary(1))))
    assert share_outside(declared, wild, "next_observation") > 0.4


def acting(low: float, high: float, count: int = 400) -> Transitions:
    """Actions that fill a range in both columns."""
    return replace(rows(count), action=np.linspace([low] * 2, [high] * 2, count))


def test_the_scale_of_actions_is_that_of_the_worst_column() -> None:
    real = rows()
    assert action_scale(real, real) == 1
    assert action_scale(real, replace(real, action=real.action * [1, 0.5])) == pytest.approx(0.5)
    assert action_scale(real, replace(real, action=real.action * [2, 0.9])) == pytest.approx(2)
    assert action_scale(real, replace(real, action=np.zeros((200, 2)))) == 0
    assert action_scale(replace(real, action=np.zeros((200, 2))), real) is None
    assert action_scale(real[:1], real[:1]) is None
    discrete = replace(real, action=np.arange(200) % 3)
    assert action_scale(discrete, discrete) is None


def test_actions_that_look_rescaled() -> None:
    wide, unit, narrow = acting(-2, 2), acting(-1, 1), acting(-0.4, 0.4)
    assert "synthetic actions look rescaled to [-1, 1]" in (rescaled_actions(wide, unit) or "")
    assert "between -0.4 and 0.4" in (rescaled_actions(narrow, unit) or "")
    assert "real actions look rescaled" in (rescaled_actions(unit, wide) or "")
    declared = replace(unit, action_space=(Box.uniform(-2, 2, 2),))
    assert "declared action space reaches from -2 to 2" in (rescaled_actions(declared, unit) or "")
    in_its_box = replace(unit, action_space=(Box.uniform(-1, 1, 2),))
    nearly = acting(-0.96, 0.93)
    for real, synthetic in ((unit, unit), (wide, wide), (in_its_box, unit), (unit, nearly), (wide, narrow)):
        assert rescaled_actions(real, synthetic) is None
    discrete = replace(unit, action=np.arange(400) % 3)
    assert rescaled_actions(discrete, discrete) is None
