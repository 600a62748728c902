"""The log likelihood of rows is a density in their own units."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synther import Synthesizer, Transitions


@pytest.fixture(scope="module")
def gaussian() -> tuple[Transitions, np.ndarray]:
    """Four correlated columns of unlike units, and the true log density of every row."""
    mixing = np.array([[5.0, 0, 0, 0], [0.01, 0.02, 0, 0], [0, 0.5, 1.0, 0], [4.0, 0, 0, 1.0]])
    normal = np.random.default_rng(0).normal(size=(8000, 4))
    values = normal @ mixing.T + [100, 0, 3, 100]
    density = -0.5 * (normal**2).sum(1) - 2 * math.log(2 * math.pi) - math.log(np.linalg.det(mixing))
    return Transitions(values[:, :1], values[:, 1:2], values[:, 2], values[:, 3:]), density


@pytest.fixture(scope="module")
def fitted(gaussian) -> Synthesizer:
    settings = {
        "network": {"width": 64, "depth": 2, "embedding": 32},
        "fit": {"steps": 800, "learning_rate": 4e-3, "evaluate_every": 500},
        "data": {"scaling": "standard"},
    }
    return Synthesizer("laptop", **settings).fit(gaussian[0], progress=False)


def test_it_is_the_density_of_the_data(gaussian, fitted):
    """Within 0.05 nats of the truth on average, in the rows' own units, and it knows which rows are rare."""
    rows, truth = gaussian
    nats = fitted.log_likelihood(rows[:500], steps=32)
    assert nats.shape == (500,)
    assert nats.dtype == np.float64
    assert nats.mean() == pytest.approx(truth[:500].mean(), abs=0.05)
    assert np.corrcoef(nats, truth[:500])[0, 1] > 0.98


def test_rows_that_could_not_be_are_less_likely(gaussian, fitted):
    rows = gaussian[0][:200]
    moved = Transitions(rows.observation, rows.action, rows.reward, rows.next_observation[::-1])
    likely, unlikely = (fitted.log_likelihood(those, steps=32) for those in (rows, moved))
    assert unlikely.mean() < likely.mean() - 3


def test_a_noisy_row_is_less_likely_than_the_real_one(gaussian, fitted):
    rows = gaussian[0][:200]
    noise = np.random.default_rng(1).normal(size=rows.reward.shape) * 3
    noisy = Transitions(rows.observation, rows.action, rows.reward + noise, rows.next_observation)
    likely, unlikely = (fitted.log_likelihood(those, steps=32) for those in (rows, noisy))
    assert unlikely.mean() < likely.mean() - 2


def test_rows_stand_alone(gaussian, fitted):
    rows = gaussian[0][:6]
    together = fitted.log_likelihood(rows, steps=8)
    alone = np.concatenate([fitted.log_likelihood(rows[i : i + 1], steps=8) for i in range(6)])
    np.testing.assert_allclose(together, alone, atol=1e-3)
