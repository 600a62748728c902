from __future__ import annotations

import math

import pytest
import torch

from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.edm import Denoiser
from synther.diffusion.networks import Network
from synther.diffusion.start import Start


def network(columns: int = 3) -> Network:
    torch.manual_seed(0)
    return Network(columns, NetworkConfig(width=16, depth=2, embedding=8)).requires_grad_(False)


def sampler(kind: str = "sde", steps: int = 4, net: Network | None = None) -> BlockSampler:
    return BlockSampler(net or network(), NoiseConfig(), SamplerConfig(kind, steps))


@pytest.mark.parametrize("kind", ["sde", "heun", "euler", "unipc"])
def test_rows_depend_on_seed_and_block_alone(kind):
    one, other = sampler(kind), sampler(kind)
    forwards = [one.draw(7, block) for block in range(3)]
    torch.manual_seed(99)
    backwards = [other.draw(7, block) for block in (2, 1, 0)][::-1]
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


def test_no_two_blocks_or_seeds_are_alike():
    one = sampler()
    drawn = [one.draw(seed, block) for seed in (0, 1, 2) for block in (0, 1, 2)]
    for i, block in enumerate(drawn):
        for other in drawn[:i]:
            assert not torch.isclose(block, other).all(dim=1).any()


def test_drawing_leaves_the_global_stream_alone():
    one = sampler()
    before = torch.get_rng_state()
    one.draw(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["sde", "heun", "unipc"])
def test_moments(kind):
    # F = 0 is exact where the scaled rows are N(0, I): D = c_skip x = x / (1 + sigma^2).
    net = network()
    net.row_out.weight.zero_()
    net.row_out.bias.zero_()
    steps = 64 if kind == "sde" else 32
    # s_noise above 1 would inflate the variance by design.
    one = BlockSampler(net, NoiseConfig(), SamplerConfig(kind, steps, s_noise=1.0))
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


def test_gradients_flow_through_the_denoiser_without_a_type_only():
    net, x = network(), torch.randn(5, 3, requires_grad=True)
    assert Denoiser(net, NoiseConfig())(x, 1.0).requires_grad
    with torch.no_grad():
        assert not Denoiser(net, NoiseConfig(), torch.float32)(x, 1.0).requires_grad
