"""Rows on their way from noise to data: the levels fall, the end is what is drawn, and the way is the known one."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from synther import compute
from synther.diffusion.blocks import _STREAM, BlockSampler
from synther.diffusion.config import NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.networks import Network
from synther.diffusion.start import Start

KINDS = ["sde", "heun", "euler", "unipc"]
STRETCHED = Start(torch.diag(torch.tensor([1.05, 0.9, 1.0])).double(), torch.tensor([0.1, 0.0, -0.1]).double())


def network() -> Network:
    torch.manual_seed(0)
    return Network(3, NetworkConfig(width=16, depth=2, embedding=8)).requires_grad_(False)


def sampler(kind: str = "unipc", steps: int = 6, start: Start | None = None, **options) -> BlockSampler:
    return BlockSampler(network(), NoiseConfig(), SamplerConfig(kind, steps, **options), start=start)


def noise(one: BlockSampler, seed: int) -> torch.Tensor:
    """What block 0 begins from."""
    generator = compute.generator(one.device, seed, _STREAM, 0)
    return torch.randn(one.block_rows, 3, generator=generator, device=one.device)


@pytest.mark.parametrize("start", [None, STRETCHED], ids=["plain", "matched"])
@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_levels_fall_to_0_where_the_drawn_rows_are(kind, restarts, start):
    one = sampler(kind, restarts=restarts, start=start)
    drawn = one.draw(7, 0)
    trace = one.trace(7, 10)
    sigmas = [sigma for sigma, _ in trace]
    assert sigmas[0] == one.sigmas[0] == 80.0
    assert sigmas[-1] == 0.0
    assert all(before > after for before, after in pairwise(sigmas))
    assert all(rows.shape == (10, 3) for _, rows in trace)
    assert torch.equal(trace[-1][1], drawn[:10])
    assert torch.equal(one.draw(7, 0), drawn)


@pytest.mark.parametrize("kind", ["heun", "euler", "unipc"])
def test_every_level_of_the_schedule_is_there(kind):
    one = sampler(kind)
    assert [sigma for sigma, _ in one.trace(0, 1)] == one.sigmas


def test_levels_raised_by_fresh_noise_are_left_out():
    one = sampler("sde", 16)
    sigmas = [sigma for sigma, _ in one.trace(0, 1)]
    assert set(one.sigmas) <= set(sigmas)
    assert len(sigmas) == len(one.sigmas)


@pytest.mark.parametrize(("first", "last", "more"), [(0.1, 0.004, []), (0.001, 0.0005, [0.001, 0.0005])])
def test_restarts_add_only_levels_below_those_before(first, last, more):
    one = sampler(restarts=2, restart_steps=2, restart_from=first, restart_to=last)
    assert [sigma for sigma, _ in one.trace(0, 1)] == pytest.approx([*one.sigmas[:-1], *more, 0.0])


@pytest.mark.parametrize("start", [None, STRETCHED], ids=["plain", "matched"])
def test_the_first_rows_are_the_noise(start):
    one = sampler(start=start)
    unit = noise(one, 3) if start is None else start.draw(noise(one, 3))
    torch.testing.assert_close(one.trace(3, 20)[0][1], unit[:20] * 80 / math.hypot(80, 1))


@pytest.mark.parametrize(("kind", "tolerance"), [("heun", 0.01), ("euler", 0.1), ("unipc", 0.01)])
def test_normal_rows_stay_where_they_are(kind, tolerance):
    # F = 0 is exact where the scaled rows are N(0, I): then x goes as (1 + sigma^2)^(1/2), which is 1 / c_in.
    net = network()
    net.row_out.weight.zero_()
    net.row_out.bias.zero_()
    one = BlockSampler(net, NoiseConfig(), SamplerConfig(kind, 64))
    expected = noise(one, 0)[:50]
    for sigma, rows in one.trace(0, 50):
        torch.testing.assert_close(rows, expected, rtol=tolerance, atol=1e-6, msg=f"at {sigma}")


def test_rows_have_the_deviation_of_the_data_all_the_way():
    one = BlockSampler(network(), NoiseConfig(sigma_data=0.5), SamplerConfig("euler", 3))
    torch.testing.assert_close(one.trace(3, 20)[0][1], noise(one, 3)[:20] * 0.5 * 80 / math.hypot(80, 0.5))


def test_no_more_rows_than_a_block_has():
    one = sampler(steps=2)
    assert len(one.trace(0, 10**6)[-1][1]) == one.block_rows
