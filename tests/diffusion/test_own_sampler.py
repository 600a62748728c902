"""A sampler from outside the package: one function, and one call or one entry point that makes it known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SAMPLERS, NetworkConfig, NoiseConfig, Sampler, SamplerConfig
from synther.diffusion.networks import Network
from synther.diffusion.samplers import Denoise, euler, sample, sigmas_of
from synther.errors import ConfigError
from synther.presets import Settings

NOISE = NoiseConfig()


def midpoint(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """The explicit midpoint rule, whose last step is one of Euler."""
    for sigma, sigma_next in pairwise(sigmas[:-1]):
        half = (sigma + sigma_next) / 2
        x_half = x + (half - sigma) * (x - denoise(x, sigma)) / sigma
        x = x + (sigma_next - sigma) * (x_half - denoise(x_half, half)) / half
    return euler(denoise, x, sigmas[-2:])


def ancestral(
    denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator, config: SamplerConfig
) -> Tensor:
    """Denoise, and noise again to the next level."""
    for sigma, sigma_next in pairwise(sigmas):
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x = denoise(x, sigma) + config.s_noise * sigma_next * eps
    return x


def few_levels(steps: int, noise: NoiseConfig) -> list[float]:
    return [noise.sigma_max / 2**i for i in range(steps)] + [0.0]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    SAMPLERS.register("midpoint", Sampler(midpoint, calls_per_step=2))
    SAMPLERS.register("ancestral", Sampler(ancestral, stochastic=True, sigmas=few_levels))
    yield
    SAMPLERS.remove("midpoint")
    SAMPLERS.remove("ancestral")


def test_a_config_may_name_it():
    config = SamplerConfig("midpoint", steps=8)
    assert config.network_calls == 15
    assert Settings.from_json(Settings(sampler=config).to_json()).sampler == config
    SAMPLERS.remove("midpoint")
    with pytest.raises(ConfigError, match=r"sampler\.kind .* ancestral"):
        SamplerConfig("midpoint")


def test_rows_are_drawn_with_it():
    torch.manual_seed(0)
    network = Network(3, NetworkConfig(width=16, depth=2, embedding=8)).requires_grad_(False)
    mine, heun = (BlockSampler(network, NOISE, SamplerConfig(kind, 400)).draw(0, 0) for kind in ("midpoint", "heun"))
    assert not torch.equal(mine, heun)
    # Both are of second order.
    torch.testing.assert_close(mine, heun, rtol=0, atol=0.02)


def test_a_stochastic_one_gets_random_numbers_and_its_options(gaussian, generator):
    config = SamplerConfig("ancestral", steps=6, s_noise=0.5)
    sigmas = sigmas_of(config, NOISE)
    assert sigmas == few_levels(6, NOISE)
    x = gaussian.draw(10, sigmas[0], generator)
    drawn = sample(config, gaussian.denoise, x, sigmas, generator.manual_seed(1))
    assert torch.equal(drawn, ancestral(gaussian.denoise, x, sigmas, generator.manual_seed(1), config))
