"""Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models": the formulas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from synther.diffusion.config import NoiseConfig

Level = TypeVar("Level", float, Tensor)


def c_skip(sigma: Level, sigma_data: float) -> Level:
    return sigma_data**2 / (sigma**2 + sigma_data**2)


def c_out(sigma: Level, sigma_data: float) -> Level:
    return sigma * sigma_data * c_in(sigma, sigma_data)


def c_in(sigma: Level, sigma_data: float) -> Level:
    inverse: Level = (sigma**2 + sigma_data**2) ** -0.5
    return inverse


def c_noise(sigma: float) -> float:
    return math.log(sigma) / 4


class Problem(NamedTuple):
    """What the raw network F has to learn: `target` (N, D) from `inputs` (N, D) and `level` (N, 1), c_noise."""

    inputs: Tensor
    level: Tensor
    target: Tensor


def draw_problem(clean: Tensor, noise: NoiseConfig, generator: torch.Generator) -> Problem:
    """Noise `clean` rows (N, D) at random levels and state what the network has to say about them.

    The weighted loss on the denoiser D = c_skip x + c_out F, lambda(sigma) |D - clean|^2, has lambda = 1 / c_out^2
    (Eq. 8), so it is the plain squared error of F against (clean - c_skip x) / c_out. With x = clean + sigma n this is
    the expression below, which has no cancellation where sigma is small.
    """
    like: Any = {"device": clean.device, "dtype": clean.dtype}
    log_sigma = noise.p_mean + noise.p_std * torch.randn(len(clean), 1, generator=generator, **like)
    sigma = log_sigma.exp()
    normal = torch.randn(clean.shape, generator=generator, **like)
    norm = (sigma**2 + noise.sigma_data**2).sqrt()
    target = (clean * (sigma / noise.sigma_data) - normal * noise.sigma_data) / norm
    return Problem((clean + sigma * normal) / norm, log_sigma / 4, target)


def geometric_sigmas(steps: int, first: float, last: float) -> list[float]:
    """`steps` noise levels from `first` down to `last` in even ratios, then 0."""
    return [first * (last / first) ** (i / max(steps - 1, 1)) for i in range(steps)] + [0.0]


def karras_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """`steps` noise levels from sigma_max down to sigma_min, then 0 (Eq. 5)."""
    if steps == 1:
        return [noise.sigma_max, 0.0]
    first, last = noise.sigma_max ** (1 / noise.rho), noise.sigma_min ** (1 / noise.rho)
    return [(first + i / (steps - 1) * (last - first)) ** noise.rho for i in range(steps)] + [0.0]
