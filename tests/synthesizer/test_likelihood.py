"""The log likelihood of rows is a density in their own units."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions

from .rows import QUICK, plain


@pytest.fixture(scope="module")
def gaussian() -> tuple[Transitions, np.ndarray]:
    """Four correlated columns of unlike units, and the true log density of every row."""
    mixing = np.array([[5.0, 0, 0, 0], [0.01, 0.02, 0, 0], [0, 0.5, 1.0, 0], [4.0, 0, 0, 1.0]])
    normal = np.random.default_rng(0).normal(size=(4000, 4))
    values = normal @ mixing.T + [100, 0, 3, 100]
    density = -0.5 * (normal**2).sum(1) - 2 * math.log(2 * math.pi) - math.log(np.linalg.det(mixing))
    return Transitions(values[:, :1], values[:, 1:2], values[:, 2], values[:, 3:]), density


@pytest.fixture(scope="module")
def fitted(gaussian) -> Synthesizer:
    settings = {
        "network": {"width": 64, "depth": 2, "embedding": 32},
        "fit": {"steps": 350, "batch_size": 128, "learning_rate": 4e-3, "evaluate_every": 175},
        "data": {"scaling": "standard"},
    }
    return Synthesizer("laptop", **settings).fit(gaussian[0], progress=False)


@pytest.fixture(scope="module")
def nats(gaussian, fitted) -> np.ndarray:
    return fitted.log_likelihood(gaussian[0][:300], steps=24)


def test_it_is_the_density_of_the_data_and_knows_which_rows_are_rare(gaussian, nats, fitted):
    """Within 0.05 nats of the truth on average, in the rows' own units, and it knows which rows are rare."""
    truth = gaussian[1]
    assert nats.shape == (300,)
    assert nats.dtype == np.float64
    assert nats.mean() == pytest.approx(truth[:300].mean(), abs=0.05)
    assert np.corrcoef(nats, truth[:300])[0, 1] > 0.98
    rows = gaussian[0][:100]
    noise = np.random.default_rng(1).normal(size=rows.reward.shape) * 3
    noisy = Transitions(rows.observation, rows.action, rows.reward + noise, rows.next_observation)
    moved = Transitions(rows.observation, rows.action, rows.reward, rows.next_observation[::-1])
    for other, less in ((noisy, 2), (moved, 3)):
        assert fitted.log_likelihood(other, steps=24).mean() < nats[:100].mean() - less
    rows = gaussian[0][:6]
    together = fitted.log_likelihood(rows, steps=8)
    alone = np.concatenate([fitted.log_likelihood(rows[i : i + 1], steps=8) for i in range(6)])
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_every_row_has_the_slope_of_its_own_place():
    """Of curved scalings, which stretch one row more than another."""
    rows = plain(60)
    model = Synthesizer("laptop", **QUICK, data={"scaling": "quantile"}).fit(rows, progress=False)
    together = model.log_likelihood(rows[:6], steps=4)
    alone = np.concatenate([model.log_likelihood(rows[i : i + 1], steps=4) for i in range(6)])
    np.testing.assert_allclose(together, alone, atol=1e-3)
    slopes = model.scaler.log_slope(model.layout.pack(rows[:6]))
    assert np.ptp(slopes) > 0.1, "all alike: this shows nothing"


def test_modes_of_the_caller_change_nothing(tmp_path):
    """Agents act without gradients, and what they keep is fitted then and there."""
    rows = plain(60)
    expected = Synthesizer("laptop", **QUICK).fit(rows, progress=False).log_likelihood(rows[:5], steps=4)
    with torch.inference_mode():
        model = Synthesizer("laptop", **QUICK).fit(rows, progress=False)
        model.save(tmp_path / "model")
        loaded = Synthesizer.load(tmp_path / "model")
        inside = model.log_likelihood(rows[:5], steps=4)
    np.testing.assert_array_equal(inside, expected)
    for one in (model, loaded):
        np.testing.assert_array_equal(one.log_likelihood(rows[:5], steps=4), expected)
