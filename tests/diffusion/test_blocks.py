from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from synther import compute
from synther.diffusion.blocks import _STREAM, BlockSampler
from synther.diffusion.config import NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.edm import Denoiser
from synther.diffusion.networks import Network
from synther.diffusion.start import Start

KINDS = ["sde", "heun", "euler", "unipc"]


def network(columns: int = 3) -> Network:
    torch.manual_seed(0)
    return Network(columns, NetworkConfig(width=16, depth=2, embedding=8)).requires_grad_(False)


def sampler(kind: str = "unipc", steps: int = 6, start: Start | None = None, **options) -> BlockSampler:
    return BlockSampler(network(), NoiseConfig(), SamplerConfig(kind, steps, **options), start=start)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_depend_on_seed_and_block_alone(kind):
    one, other = sampler(kind, 4), sampler(kind, 4)
    forwards = [one.draw(7, block) for block in range(3)]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    backwards = [other.draw(7, block) for block in (2, 1, 0)][::-1]
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(forwards, backwards, strict=True):
        assert a.shape == (one.block_rows, 3)
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["sde", "unipc"])
def test_captured_blocks_are_those_of_plain_calls(kind):
    one = BlockSampler(
        network(), NoiseConfig(), SamplerConfig(kind, 4, restarts=2, restart_steps=2), start=Start.plain(3)
    )
    draw = one.captured()
    drawn = [draw(7, block) for block in (2, 0, 2)]
    for block, rows in zip((2, 0, 2), drawn, strict=True):
        assert torch.equal(rows, one.draw(7, block))


def test_moments():
    """Of the sampler that adds noise on its way; where the rows of the others end, `trace` tells below."""
    # F = 0 is exact where the scaled rows are N(0, I): D = c_skip x = x / (1 + sigma^2).
    net = network()
    net.row_out.weight.zero_()
    net.row_out.bias.zero_()
    # s_noise above 1 would inflate the variance by design.
    one = BlockSampler(net, NoiseConfig(), SamplerConfig("sde", 64, s_noise=1.0))
    rows = torch.cat([one.draw(0, block) for block in range(8)])
    five = 5 / math.sqrt(len(rows))
    assert rows.mean(0).abs().max() < five
    spread = 1 + torch.eye(3)  # Var of a sample covariance: 2 / n on the diagonal, 1 / n off it
    assert ((torch.cov(rows.t()) - torch.eye(3)).abs() < five * spread.sqrt()).all()


def test_denoiser_is_the_preconditioned_network():
    net, x = network().double(), torch.randn(5, 3, dtype=torch.float64)
    for sigma in (0.002, 0.7, 80.0):
        for sigma_data in (1.0, 0.5):
            total = sigma**2 + sigma_data**2
            raw = net(x / total**0.5, torch.full((5, 1), math.log(sigma) / 4, dtype=torch.float64))
            expected = sigma_data**2 / total * x + sigma * sigma_data / total**0.5 * raw
            noise = NoiseConfig(sigma_data=sigma_data)
            torch.testing.assert_close(Denoiser(net, noise)(x, sigma), expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(Denoiser(net, noise, torch.float64)(x, sigma), expected, rtol=1e-12, atol=1e-12)


STRETCHED = Start(torch.diag(torch.tensor([1.05, 0.9, 1.0])).double(), torch.tensor([0.1, 0.0, -0.1]).double())


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
@pytest.mark.parametrize("deviation", [1.0, 0.5])
def test_the_first_rows_are_noise_of_the_deviation_of_the_data(start, deviation):
    one = BlockSampler(network(), NoiseConfig(sigma_data=deviation), SamplerConfig("euler", 3), start=start)
    unit = noise(one, 3) if start is None else start.draw(noise(one, 3))
    torch.testing.assert_close(one.trace(3, 20)[0][1], unit[:20] * deviation * 80 / math.hypot(80, deviation))


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


@pytest.mark.parametrize("kind", ["sde", "unipc"])
def test_cores_that_share_blocks_draw_the_same_rows(kind):
    one = sampler(kind, 4)
    expected = [one.draw(7, block) for block in range(1, 8)]
    torch.set_num_threads(3)
    try:
        drawn = list(one.drawn(7, range(1, 8), lambda block, rows: (block, rows)))
        pairs = list(one.drawn(7, range(1, 8), lambda block, rows: (block, rows), together=2))
    finally:
        torch.set_num_threads(1)
    assert [block for block, _ in pairs] == [1, 3, 5, 7]
    assert torch.equal(torch.cat([rows for _, rows in pairs]), torch.cat(expected))
    assert [block for block, _ in drawn] == list(range(1, 8))
    assert all(torch.equal(rows, wanted) for (_, rows), wanted in zip(drawn, expected, strict=True))
