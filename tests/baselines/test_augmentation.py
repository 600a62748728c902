"""Augmented rows: the real ones, disturbed as the paper says and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther.baselines.augmentation import AUGMENTATIONS, Augmentation
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.errors import ConfigError

N = 20_000


def real(dtype=np.float64) -> Transitions:
    """Row i is told by its reward, and no value is 0."""
    draw = np.random.default_rng(1)
    here = (draw.integers(10, 50, (40, 3)) * draw.choice([-1, 1], (40, 3))).astype(dtype)
    there = here + draw.integers(1, 9, (40, 3)).astype(dtype)
    action = draw.uniform(-1, 1, (40, 2))
    return Transitions(here, action, np.arange(40.0), there, np.arange(40) % 7 == 0, np.arange(40) == 39)


def parts(kind: str) -> tuple[Transitions, Transitions]:
    """Augmented rows and the real rows they come from."""
    fake = Augmentation(kind).fit(real()).sample(N, seed=3)
    return fake, real()[fake.reward.astype(int)]


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_rows_come_equally_often_and_actions_rewards_and_terminals_stay(kind):
    fake, source = parts(kind)
    np.testing.assert_array_equal(fake.action, source.action)
    np.testing.assert_array_equal(fake.terminal, source.terminal)
    assert fake.timeout is None
    counts, expected = np.bincount(fake.reward.astype(int), minlength=40), N / 40
    # Chi-squared with 39 degrees of freedom lies beyond either end by chance once in a thousand seeds: rows that are
    # taken in turn are more even than chance.
    assert 17.2 < ((counts - expected) ** 2 / expected).sum() < 72.1


def test_additive_noise_has_deviation_a_tenth_and_is_drawn_for_each_value():
    fake, source = parts("additive")
    noise = np.hstack([fake.observation - source.observation, fake.next_observation - source.next_observation])
    # Standard errors at 20,000 rows: 0.0007 of a mean, 0.0005 of a deviation, 0.007 of a correlation; five of each.
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.0035)
    np.testing.assert_allclose(noise.std(0), 0.1, atol=0.0025)
    assert np.abs(np.corrcoef(noise.T) - np.eye(6)).max() < 0.035


def test_multiplicative_noise_is_one_factor_a_row():
    fake, source = parts("multiplicative")
    factors = np.hstack([fake.observation / source.observation, fake.next_observation / source.next_observation])
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-12)
    assert_uniform(factors[:, 0], 0.8, 1.2)


def test_dynamics_noise_scales_the_step_alone():
    fake, source = parts("dynamics")
    np.testing.assert_array_equal(fake.observation, source.observation)
    step = source.next_observation - source.observation
    factors = (fake.next_observation - fake.observation) / step
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-9)
    assert_uniform(factors[:, 0], 0.5, 1.5)


def assert_uniform(values: np.ndarray, low: float, high: float) -> None:
    """Kolmogorov-Smirnov at a level of one in a thousand."""
    assert low <= values.min()
    assert values.max() <= high
    ordered = (np.sort(values) - low) / (high - low)
    gap = np.abs(ordered - (np.arange(len(values)) + 0.5) / len(values)).max()
    assert gap < 1.95 / np.sqrt(len(values))


@pytest.mark.parametrize(
    ("given", "expected"), [(np.float32, np.float32), (np.int64, np.float64), (np.int8, np.float32)]
)
def test_number_types_and_spaces(given, expected):
    boxes = replace(real(given), observation_space=(Box.uniform(-50, 60, 3),), action_space=(Box.uniform(-1, 1, 2),))
    fake = Augmentation("additive").fit(boxes).sample(5, seed=0)
    assert fake.observation.dtype == fake.next_observation.dtype == expected
    assert (fake.observation_space, fake.action_space) == (None, boxes.action_space)  # disturbed, it may leave its box


def test_seeds():
    model = Augmentation("additive").fit(real())
    assert model.sample(10, seed=1).equals(model.sample(10, seed=1))
    assert not model.sample(10, seed=1).equals(model.sample(10, seed=2))
    assert not model.sample(10).equals(model.sample(10))


def test_refusals():
    with pytest.raises(ConfigError, match="'blur'"):
        Augmentation("blur")
    with pytest.raises(ConfigError, match="call fit"):
        Augmentation("additive").sample(3)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        Augmentation("additive").fit(real()).sample(0)
    assert len(Augmentation("additive").fit(real()).sample(2e1)) == 20
