"""Which rows are drawn: seed and sampler decide, how many are asked for does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, read
from synther.data.checks import drawing_seed
from synther.errors import ConfigError

from .rows import made
from .settings import SHORT


def test_a_smaller_sample_is_the_beginning_of_a_larger_one(model, fake):
    for count in (1, 100, 511, 512, 513, 1300):
        assert model.sample(count, seed=0, progress=False).equals(fake[:count]), count


def test_blocks_are_the_rows_in_order(model, fake):
    blocks = list(model.sample_blocks(1300, seed=0, progress=False))
    assert [len(block) for block in blocks] == [512, 512, 276]
    assert Transitions.concatenate(blocks).equals(fake[:1300])
    assert {(block.action_space, block.observation_space, block.env_id) for block in blocks} == {
        (fake.action_space, fake.observation_space, fake.env_id)
    }


def test_the_seed_decides(model, fake):
    other = model.sample(600, seed=1, progress=False)
    assert model.sample(600, seed=1, progress=False).equals(other)
    assert not np.array_equal(other.reward, fake.reward[:600])
    assert not np.isin(other.reward, fake.reward).any()


def test_without_a_seed_every_call_draws_other_rows(model, fake):
    drawn = [model.sample(300, progress=False).reward for _ in range(2)]
    drawn.append(next(model.sample_blocks(300, progress=False)).reward)
    for place, rewards in enumerate(drawn):
        others = np.concatenate([fake.reward, *drawn[:place]])
        assert np.isin(rewards, others).mean() < 0.05  # float32 has not that many numbers


def test_fresh_seeds_keep_away_from_the_streams_of_the_model():
    """Drawn from 2**31 and above are the rows that flags are calibrated on."""
    seeds = {drawing_seed(None) for _ in range(100)}
    assert len(seeds) == 100
    assert 2**32 < min(seeds) <= max(seeds) < 2**63
    assert drawing_seed(np.int64(7)) == 7


def test_the_global_random_state_has_no_say(model, fake):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert model.sample(10, seed=0, progress=False).equals(fake[:10])
    assert torch.equal(torch.get_rng_state(), before)


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
