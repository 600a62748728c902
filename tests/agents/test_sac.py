"""SAC and REDQ: critics that are drawn, updates in a row. `test_updates.py` has their losses."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from synther.agents.algorithm import Noise, Shape
from synther.agents.rows import Batch
from synther.agents.sac import REDQ_CONFIG, SAC, SAC_CONFIG, SACConfig
from synther.errors import ConfigError

from .plain import Network, drawn, in_float64
from .tables import CPU

S, B, WIDE, A = 2, 7, 3, 2
SHAPE = Shape(WIDE, A, (0, 1), CPU)
SMALL = {"width": 6, "batch_size": B, "learning_rate": 2.0**-7, "discount": 0.9, "tau": 0.1}


def test_updates_in_a_row_are_the_same_one_by_one(generator):
    config = SACConfig(**SMALL, num_critics=4, utd=5)
    together, single = (in_float64(SAC(config, SHAPE)) for _ in range(2))
    drawn_ones = [drawn(single, SHAPE, B, generator) for _ in range(5)]
    for step, (batch, noise) in enumerate(drawn_ones):
        last = single.update(batch, noise, step)
    batches, noises = zip(*drawn_ones, strict=True)
    stacked = Batch(*(torch.stack(parts, 1) for parts in zip(*(batch[:6] for batch in batches), strict=True)))
    losses = together.updates(stacked, Noise(*(torch.stack(parts, 1) for parts in zip(*noises, strict=True))))
    for name, tensor in single.state().items():
        torch.testing.assert_close(together.state()[name], tensor, rtol=1e-12, atol=1e-13, msg=name)
    for name, loss in last.items():
        torch.testing.assert_close(losses[name], loss, rtol=1e-12, atol=1e-13, msg=name)


def test_every_pair_of_critics_is_as_likely(generator, monkeypatch):
    algorithm = in_float64(SAC(SACConfig(**SMALL, num_critics=4, utd=300), SHAPE))
    picked: list[frozenset[int]] = []

    def noted(own, batch, next_pair, subset):
        picked.extend(map(frozenset, subset.tolist()))
        return batch.reward

    monkeypatch.setattr(SAC, "_update_critics", noted)
    batch, noise = drawn(algorithm, SHAPE, B, generator)
    many = batch.apply(lambda part: part[:, None].expand(-1, 300, *part.shape[1:]))
    uniform = torch.rand(S, 300, B, 1, generator=generator, dtype=torch.float64) * 2 - 1
    algorithm.updates(many, Noise(noise.normal[:, None].expand(-1, 300, -1, -1), uniform))
    counts = Counter(picked)
    assert sorted(map(len, counts)) == [2] * 6
    assert max(abs(count - 100) for count in counts.values()) < 5 * math.sqrt(100)


@pytest.mark.parametrize(("std", "rises"), [(-8.0, True), (0.0, False)])
def test_temperature_rises_where_the_entropy_is_too_low(std, rises, generator):
    algorithm = SAC(SACConfig(**SMALL), SHAPE)
    sizes = algorithm.actor.sizes
    used = sum(i * o for i, o in pairwise(sizes)) + sum(sizes[1:])
    with torch.no_grad():  # mean 0, and one deviation wherever it looks
        algorithm.actor.weights.zero_()
        algorithm.actor.weights[:, used - A : used] = std
    batch, noise = drawn(algorithm, SHAPE, B, generator)
    single = Noise(*(part.float() for part in noise))
    losses = algorithm.update(batch.apply(torch.Tensor.float), single, 0)
    assert ((losses["entropy"] < -A) == rises).all()
    assert ((algorithm.log_temperature > 0) == rises).all()
    assert losses["temperature"].tolist() == [1.0, 1.0]  # as it was before


def test_the_named_configs_are_the_papers():
    assert (SAC_CONFIG.num_critics, SAC_CONFIG.num_min_critics, SAC_CONFIG.utd) == (2, 2, 1)
    assert (REDQ_CONFIG.num_critics, REDQ_CONFIG.num_min_critics, REDQ_CONFIG.utd) == (10, 2, 20)
    for config in (SAC_CONFIG, REDQ_CONFIG):
        assert (config.width, config.depth, config.batch_size, config.learning_rate) == (256, 2, 256, 3e-4)
        assert (config.discount, config.tau, config.normalize) == (0.99, 0.005, False)
    for change in ({"num_min_critics": 3}, {"utd": 0}, {"num_critics": 0}, {"batch_size": 9, "num_critics": 10}):
        with pytest.raises(ConfigError, match=rf"agent\.{next(iter(change))} must"):
            SACConfig(**change)


def test_first_weights_have_glorots_bounds_and_no_biases():
    algorithm = SAC(SACConfig(width=64), SHAPE)
    for row, sizes in ((algorithm.actor.weights[0], (3, 64, 64, 4)), (algorithm.critics.weights[1, 1], (5, 64, 64, 1))):
        for linear in Network(row, sizes).layers:
            bound = math.sqrt(6 / sum(linear.weight.shape))
            assert 0.8 * bound < linear.weight.abs().max() <= bound
            assert not linear.bias.any()
    assert torch.equal(algorithm.critics.weights, algorithm.target_critics.weights)


def test_the_state_is_all_that_an_update_changes(generator):
    """Otherwise a file would not carry it, and a captured update would not be rehearsed without traces."""
    algorithm = in_float64(SAC(SACConfig(**SMALL), SHAPE))
    before = {name: tensor.clone() for name, tensor in algorithm.state().items()}
    batch, noise = drawn(algorithm, SHAPE, B, generator)
    first = algorithm.update(batch, noise, 0)
    for name, tensor in algorithm.state().items():
        assert not torch.equal(tensor, before[name]), name
        tensor.copy_(before[name])
    again = algorithm.update(batch, noise, 0)
    for name, loss in first.items():
        assert torch.equal(loss, again[name]), name
