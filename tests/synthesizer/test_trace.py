"""Rows on their way from noise to data as transitions, and rows as the network sees them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from synther import Synthesizer
from synther.errors import DataError

from .rows import made, plain
from .settings import QUICK, SHORT


@pytest.fixture(scope="module")
def model(real) -> Synthesizer:
    """With the paper's scaling."""
    return Synthesizer("fast", **SHORT).fit(real, progress=False)


@pytest.mark.parametrize(
    "sampler",
    [{"steps": 3}, {"kind": "sde", "steps": 3}, {"kind": "heun", "steps": 3}, {"kind": "euler", "steps": 3},
     {"steps": 2, "matched": True, "restarts": 1, "restart_steps": 2}],
    ids=str,
)  # fmt: skip
def test_it_ends_with_the_rows_that_are_sampled(sampler):
    model = Synthesizer("laptop", **{**QUICK, "sampler": sampler}).fit(plain(), progress=False)
    steps = list(model.trace(30, seed=5))
    sigmas = [sigma for sigma, *_ in steps]
    assert sigmas[0] >= 0.999 * model.settings.noise.sigma_max  # churn may raise it
    assert sigmas[-1] == 0.0
    assert all(before > after for before, after in pairwise(sigmas))
    assert steps[-1][2].equals(model.sample(30, seed=5, progress=False))


def test_ends_are_decided_as_in_the_rows_that_are_sampled():
    following = np.random.default_rng(1).normal(size=(300, 1))
    rows = plain(next_observation=following, terminal=following[:, 0] > 0)
    model = Synthesizer("laptop", **QUICK, data={"threshold": "half"}).fit(rows, progress=False)
    _, _, last = list(model.trace(100))[-1]
    assert np.mean(last.terminal == (last.next_observation[:, 0] > 0)) > 0.9  # as the network has it, half of them
    assert last.equals(model.sample(100, seed=0, progress=False))


def test_matrices_and_transitions_belong_together(model, real):
    for _, matrix, rows in model.trace(40):
        assert matrix.shape == (40, model.layout.width)
        assert matrix.dtype == np.float32
        assert len(rows) == 40
        assert rows.observation.dtype == real.observation.dtype
        assert set(np.unique(rows.observation[:, 4])) <= {0.0, 1.0}
        np.testing.assert_array_equal(rows.observation, model.layout.unpack(model.scaler.inverse(matrix)).observation)
    np.testing.assert_allclose(model.matrix(rows)[:, 0], matrix[:, 0], rtol=1e-4, atol=1e-4)


def test_it_begins_with_noise_of_deviation_1(model):
    model = Synthesizer(model.settings.changed(sampler={"kind": "sde", "steps": 2})).fit(made(), progress=False)
    _, noise, _ = next(iter(model.trace(512)))
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)


def test_the_seed_decides(quick):
    first, again, other = (list(quick.trace(5, seed=seed))[-1][1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


class TestMatrix:
    def test_it_is_scaled(self, model, real):
        matrix = model.matrix(real)
        assert matrix.shape == (len(real), model.layout.width)
        numbers = [model.layout.names.index(name) for name in ("observation[0]", "action[0]", "reward")]
        np.testing.assert_allclose(matrix[:, numbers].mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(matrix[:, numbers].std(axis=0), 1, atol=1e-5)

    def test_rows_of_a_matrix(self, model, real):
        """The model's flags are cut and its ends decided; here they are as they were."""
        back = model.rows_of(model.matrix(real))
        for name in ("observation", "action", "reward", "next_observation"):
            np.testing.assert_allclose(getattr(back, name), getattr(real, name), rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(back.terminal, real.terminal)

    def test_one_row(self, model, real):
        np.testing.assert_array_equal(model.matrix(real[:1]), model.matrix(real)[:1])

    def test_other_rows_are_refused(self, model):
        with pytest.raises(DataError):
            model.matrix(plain())
        with pytest.raises(DataError):
            model.matrix(made(10, action=np.zeros((10, 3)), action_space=None))
