"""Which rows are drawn: seed and sampler decide, how many are asked for does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from synther import Synthesizer, Transitions, read
from synther.data.checks import drawing_seed
from synther.errors import ConfigError, DataError

from .rows import QUICK, SHORT, made, plain


def test_samples_are_the_beginning_of_larger_ones_and_blocks_their_rows_in_order(model, fake):
    for count in (1, 100, 511, 512, 513, 1300):
        assert model.sample(count, seed=0, progress=False).equals(fake[:count]), count
    blocks = list(model.sample_blocks(1300, seed=0, progress=False))
    assert [len(block) for block in blocks] == [512, 512, 276]
    assert Transitions.concatenate(blocks).equals(fake[:1300])
    assert {(block.action_space, block.observation_space, block.env_id) for block in blocks} == {
        (fake.action_space, fake.observation_space, fake.env_id)
    }


def test_the_seed_decides_and_without_one_every_call_draws_other_rows(model, fake):
    other = model.sample(600, seed=1, progress=False)
    assert model.sample(600, seed=1, progress=False).equals(other)
    assert not np.array_equal(other.reward, fake.reward[:600])
    drawn = [other.reward, *(model.sample(300, progress=False).reward for _ in range(2))]
    drawn.append(next(model.sample_blocks(300, progress=False)).reward)
    for place, rewards in enumerate(drawn):
        others = np.concatenate([fake.reward, *drawn[:place]])
        assert np.isin(rewards, others).mean() < 0.05  # float32 has not that many numbers
    # Drawn from 2**31 and above are the rows that flags are calibrated on.
    seeds = {drawing_seed(None) for _ in range(100)}
    assert len(seeds) == 100
    assert 2**32 < min(seeds) <= max(seeds) < 2**63
    assert drawing_seed(np.int64(7)) == 7


def test_repr_says_what_it_was_fitted_on(model, real):
    network = model.settings.network
    size = f"residual {network.depth} x {network.width}"
    assert repr(model) == f"Synthesizer({size}, fitted on {len(real):,} rows, {model.record.steps:,} steps, on cpu)"
    assert repr(Synthesizer("laptop", device="cpu")) == "Synthesizer(residual 4 x 256, not fitted, on cpu)"


def test_some_options_of_another_sampler(model, fake):
    """As the constructor takes them."""
    own = model.settings.sampler
    one, other = (
        model.sample(5, seed=0, sampler=given, progress=False) for given in ({"steps": 3}, replace(own, steps=3))
    )
    assert one.equals(other)
    assert not np.array_equal(one.reward, fake.reward[:5])
    with pytest.raises(ConfigError, match=r"sampler\.step\b"):
        model.sample(5, sampler={"step": 3})


def test_how_the_environment_was_made_is_kept(tmp_path):
    model = Synthesizer("laptop", **SHORT).fit(made(50, env_options={"g": 9.0}), progress=False)
    model.sample_to(tmp_path / "x.hdf5", 3, progress=False)
    for rows in (model.sample(3, progress=False), next(model.sample_blocks(3)), read(tmp_path / "x.hdf5")):
        assert (rows.env_id, rows.env_options) == ("Made-v0", {"g": 9.0})


@pytest.fixture(scope="module")
def scaled(real) -> Synthesizer:
    """With the paper's scaling."""
    return Synthesizer("fast", **SHORT).fit(real, progress=False)


@pytest.mark.parametrize(
    "sampler",
    [{"steps": 3}, {"kind": "sde", "steps": 3}, {"kind": "heun", "steps": 3}, {"kind": "euler", "steps": 3},
     {"steps": 2, "matched": True, "restarts": 1, "restart_steps": 2}],
    ids=str,
)  # fmt: skip
def test_it_ends_with_the_rows_that_are_sampled(sampler):
    scaled = Synthesizer("laptop", **{**QUICK, "sampler": sampler}).fit(plain(), progress=False)
    steps = list(scaled.trace(30, seed=5))
    sigmas = [sigma for sigma, *_ in steps]
    assert sigmas[0] >= 0.999 * scaled.settings.noise.sigma_max  # churn may raise it
    assert sigmas[-1] == 0.0
    assert all(before > after for before, after in pairwise(sigmas))
    assert steps[-1][2].equals(scaled.sample(30, seed=5, progress=False))


def test_ends_are_decided_as_in_the_rows_that_are_sampled():
    following = np.random.default_rng(1).normal(size=(300, 1))
    rows = plain(next_observation=following, terminal=following[:, 0] > 0)
    scaled = Synthesizer("laptop", **QUICK, data={"threshold": "half"}).fit(rows, progress=False)
    _, _, last = list(scaled.trace(100))[-1]
    assert np.mean(last.terminal == (last.next_observation[:, 0] > 0)) > 0.9  # as the network has it, half of them
    assert last.equals(scaled.sample(100, seed=0, progress=False))


def test_matrices_and_transitions_belong_together(scaled, real):
    for _, matrix, rows in scaled.trace(40):
        assert matrix.shape == (40, scaled.layout.width)
        assert matrix.dtype == np.float32
        assert len(rows) == 40
        assert rows.observation.dtype == real.observation.dtype
        assert set(np.unique(rows.observation[:, 4])) <= {0.0, 1.0}
        np.testing.assert_array_equal(rows.observation, scaled.layout.unpack(scaled.scaler.inverse(matrix)).observation)
    np.testing.assert_allclose(scaled.matrix(rows)[:, 0], matrix[:, 0], rtol=1e-4, atol=1e-4)


class TestMatrix:
    def test_rows_to_a_scaled_matrix_and_back(self, scaled, real):
        matrix = scaled.matrix(real)
        assert matrix.shape == (len(real), scaled.layout.width)
        numbers = [scaled.layout.names.index(name) for name in ("observation[0]", "action[0]", "reward")]
        np.testing.assert_allclose(matrix[:, numbers].mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(matrix[:, numbers].std(axis=0), 1, atol=1e-5)
        # The scaled's flags are cut and its ends decided; here they are as they were.
        back = scaled.rows_of(scaled.matrix(real))
        for name in ("observation", "action", "reward", "next_observation"):
            np.testing.assert_allclose(getattr(back, name), getattr(real, name), rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(back.terminal, real.terminal)
        with pytest.raises(DataError):
            scaled.matrix(plain())
        with pytest.raises(DataError):
            scaled.matrix(made(10, action=np.zeros((10, 3)), action_space=None))
