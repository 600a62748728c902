from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synther.assess.bounds import Bounds, action_scale, actions_outside, rescaled_actions, share_outside
from synther.data.spaces import Binary, Box, Discrete
from synther.data.transitions import Transitions


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


def test_rounding_is_forgiven_and_one_row_is_its_own_bound() -> None:
    real = rows()
    nearly = replace(real, action=real.action + np.float32(1e-7) * np.sign(real.action))
    assert actions_outside(real, nearly) == 0
    assert actions_outside(real[:1], real[:1]) == 0
    assert actions_outside(real[:1], replace(real[:1], action=real.action[:1] + 1)) == 1


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
