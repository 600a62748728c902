"""Next observations that are clipped are modelled as what they would be, and come back clipped."""

from __future__ import annotations

import json

import numpy as np
import pytest

from synther.data import layout_json
from synther.data.numbers import Bounded, Spiked
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.layouts import decoded, through_json

ROWS = 12_000


def full(noise: float, low: float = 0.0, high: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tank that is filled or emptied, and another column. What it holds, what is added, what it would hold then."""
    draw = np.random.default_rng(0)
    holds = draw.normal(0.5, 0.5, ROWS).clip(low, high)
    other, action = draw.normal(size=ROWS), draw.uniform(-1, 1, (ROWS, 1))
    return np.c_[holds, other], action, holds + 0.4 * action[:, 0] + 0.1 * other + noise * draw.normal(size=ROWS)


def rows(noise: float = 0.0, low: float = 0.0, high: float = 1.0) -> Transitions:
    here, action, then = full(noise, low, high)
    there = np.c_[then.clip(low, high), 0.5 * here[:, 1]]
    return Transitions(here, action, here[:, 1], there, np.zeros(ROWS, bool))


def prepared(real: Transitions, residuals: str = "linear") -> Prepared:
    return prepare(real, "standard", "onehot", True, residuals=residuals)


def test_a_clipped_line_is_exact_at_whatever_observation_and_action():
    real = rows()
    found = prepared(real)
    (clip,) = found.layout.clips
    assert clip.ends == (0.0, 1.0)
    assert isinstance(found.layout.next_observation[0], Bounded)
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=1e-6)
    moved = found.matrix.copy()
    given = found.layout.given_columns
    moved[:, given] += 0.5 * np.random.default_rng(3).normal(size=(ROWS, len(given)))
    made = decoded(found, moved)
    then = made.observation[:, 0] + 0.4 * made.action[:, 0] + 0.1 * made.observation[:, 1]
    np.testing.assert_allclose(made.next_observation[:, 0], then.clip(0, 1), atol=1e-3)
    assert np.abs(made.observation - real.observation).max() > 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 9.0), (-9.0, 1.0)])
def test_noise_is_as_wide_beyond_the_ends_as_inside(low, high):
    """A line through clipped numbers is too flat, and what is off it too narrow."""
    noise = 0.03
    found = prepared(rows(noise, low, high))
    (clip,) = found.layout.clips
    assert clip.ends == (low if low > -9 else None, high if high < 9 else None)
    assert clip.weights == pytest.approx((1.0, 0.1, 0.4), abs=0.01)
    assert clip.level == pytest.approx(0.0, abs=0.01)
    packed = found.layout.pack(rows(noise, low, high))
    drawn = packed[:, found.layout.names.index("next_observation[0]")]
    off = drawn - full(0.0, low, high)[2]
    assert off.std() == pytest.approx(noise, rel=0.05)
    assert off.mean() == pytest.approx(0.0, abs=0.002)


def stuck(here: np.ndarray, then: np.ndarray) -> np.ndarray:
    """What is at an end stays there."""
    return np.where(here[:, 0] == 1, 1.0, then.clip(0, 1))


def reset(here: np.ndarray, then: np.ndarray) -> np.ndarray:
    """What would overflow is emptied."""
    return np.where(then > 1, 0.0, then.clip(0, 1))


@pytest.mark.parametrize("law", [stuck, reset])
def test_what_is_at_an_end_for_another_reason_stays_a_special_value(law):
    here, action, then = full(0.0)
    there = np.c_[law(here, then), 0.5 * here[:, 1]]
    layout = prepared(Transitions(here, action, here[:, 1], there, np.zeros(ROWS, bool))).layout
    assert layout.clips == ()
    assert isinstance(layout.next_observation[0], Spiked)


def test_nothing_is_unclipped_without_residuals_or_where_noise_decides():
    assert prepared(rows(), "none").layout.clips == ()
    assert prepared(rows(noise=0.6)).layout.clips == ()


@pytest.mark.parametrize("change", [{"column": 1}, {"weights": [1.0]}, {"off": [0.0]}, {"level": "x"}, {"ends": [0.0]}])
def test_files_with_a_wrong_clip_are_refused(change):
    told = layout_json.to_json(prepared(rows()).layout)
    told["clips"][0] |= change
    with pytest.raises(SyntherError, match=r"layout\.clips"):
        layout_json.from_json(json.loads(json.dumps(told)))


def ramp(noise: float = 0.0) -> Transitions:
    """A plant follows its target by at most 0.1 in a step, and another one downwards by at most 0.3."""
    draw = np.random.default_rng(0)
    power, target = draw.uniform(0.2, 1, (2, ROWS, 2)).astype(np.float32)
    wanted = target + noise * draw.normal(size=power.shape) - power
    after = power + np.c_[wanted[:, 0].clip(-0.1, 0.1), wanted[:, 1].clip(-0.3)]
    return Transitions(power, target, power[:, 0], after.astype(np.float32), np.zeros(ROWS, bool))


def test_a_change_that_is_clipped_is_exact_at_whatever_observation_and_action():
    real = ramp()
    found = prepared(real, "bent")
    assert [(clip.of_change, clip.ends[1]) for clip in found.layout.clips] == [(True, pytest.approx(0.1)), (True, None)]
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=5e-5)
    moved = found.matrix.copy()
    given = found.layout.given_columns
    moved[:, given] += 0.5 * np.random.default_rng(3).normal(size=(ROWS, len(given)))
    made = decoded(found, moved)
    wanted = made.action - made.observation
    expected = made.observation + np.c_[wanted[:, 0].clip(-0.1, 0.1), wanted[:, 1].clip(-0.3)]
    np.testing.assert_allclose(made.next_observation, expected, atol=1e-3)
    assert np.abs(made.observation - real.observation).max() > 0.3


def test_noise_of_a_clipped_change_is_as_wide_beyond_the_ends_as_inside():
    real = ramp(0.005)
    found = prepared(real)
    first = found.layout.pack(real)[:, found.layout.names.index("next_observation[0]")]
    assert (first - real.action[:, 0]).std() == pytest.approx(0.005, rel=0.1)


def test_a_place_that_follows_from_a_clipped_speed_is_left_alone():
    draw = np.random.default_rng(0)
    here, push = draw.uniform(-1, 1, (ROWS, 2)), draw.uniform(-1, 1, (ROWS, 1))
    speed = (here[:, 1] + push[:, 0]).clip(-1, 1)
    there = np.c_[here[:, 0] + 0.1 * speed, speed]
    assert [clip.column for clip in prepared(Transitions(here, push, speed, there)).layout.clips] == [1]
