"""Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models": the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from synther.diffusion.config import NoiseConfig
from synther.diffusion.networks import DenoisingNetwork, InferenceNetwork, Network

Sigma = TypeVar("Sigma", float, Tensor)


def c_skip(sigma: Sigma, sigma_data: float) -> Sigma:
    return sigma_data**2 / (sigma**2 + sigma_data**2)


def c_out(sigma: Sigma, sigma_data: float) -> Sigma:
    return sigma * sigma_data * c_in(sigma, sigma_data)


def c_in(sigma: Sigma, sigma_data: float) -> Sigma:
    inverse: Sigma = (sigma**2 + sigma_data**2) ** -0.5
    return inverse


def c_noise(sigma: float) -> float:
    return math.log(sigma) / 4


class Denoiser:
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise) at one noise level for all rows (Eq. 7).

    With a `dtype`, F runs in that type, without gradients. Without one it is the network itself, through which
    gradients flow.
    """

    def __init__(self, network: DenoisingNetwork, noise: NoiseConfig, dtype: torch.dtype | None = None) -> None:
        self.sigma_data = noise.sigma_data
        self.raw: Callable[[Tensor, float], Tensor]
        if dtype is None:
            self.raw = network.at_noise
        elif type(network) is Network:
            self.raw = InferenceNetwork(network, dtype).at_noise
        else:
            self.raw = _cast(network, dtype)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        sigma_data = self.sigma_data
        raw = self.raw(c_in(sigma, sigma_data) * x, c_noise(sigma))
        return torch.add(c_skip(sigma, sigma_data) * x, raw, alpha=c_out(sigma, sigma_data))


def _cast(network: DenoisingNetwork, dtype: torch.dtype) -> Callable[[Tensor, float], Tensor]:
    """Any network without gradients, its matrix products in `dtype` where that is a short one."""

    @torch.no_grad()
    def raw(x: Tensor, c_noise: float) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False):
            return network.at_noise(x, c_noise).to(x.dtype)

    return raw


class Problem(NamedTuple):
    """What the network F has to learn: `target` (N, D) from `inputs` (N, D), which are c_in x, and `c_noise` (N, 1)."""

    inputs: Tensor
    c_noise: Tensor
    target: Tensor


def draw_problem(y: Tensor, noise: NoiseConfig, generator: torch.Generator) -> Problem:
    """Noise clean rows `y` (N, D) at random levels, ln sigma ~ N(p_mean, p_std^2) (Table 1), and state the target of F.

    The loss of the denoiser, lambda(sigma) |D(y + sigma eps; sigma) - y|^2, has lambda = 1 / c_out^2. So it is the
    squared error of F against (y - c_skip x) / c_out (Eq. 8). With x = y + sigma eps this is the expression below,
    which has no cancellation where sigma is small.
    """
    like: Any = {"device": y.device, "dtype": y.dtype}
    ln_sigma = noise.p_mean + noise.p_std * torch.randn(len(y), 1, generator=generator, **like)
    sigma = ln_sigma.exp()
    eps = torch.randn(y.shape, generator=generator, **like)
    norm = (sigma**2 + noise.sigma_data**2).sqrt()
    target = (y * (sigma / noise.sigma_data) - eps * noise.sigma_data) / norm
    return Problem((y + sigma * eps) / norm, ln_sigma / 4, target)


Loss = Callable[[DenoisingNetwork, Problem], Tensor]
"""A scalar to minimise, written in plain PyTorch."""


def squared_error(network: DenoisingNetwork, problem: Problem) -> Tensor:
    """The mean squared error of F, which is the weighted loss of the denoiser (Eq. 8)."""
    return functional.mse_loss(network(problem.inputs, problem.c_noise).to(problem.target.dtype), problem.target)


def karras_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """`steps` noise levels from sigma_max down to sigma_min, then 0 (Eq. 5)."""
    if steps == 1:
        return [noise.sigma_max, 0.0]
    first, last = noise.sigma_max ** (1 / noise.rho), noise.sigma_min ** (1 / noise.rho)
    return [(first + i / (steps - 1) * (last - first)) ** noise.rho for i in range(steps)] + [0.0]


def geometric_sigmas(steps: int, first: float, last: float) -> list[float]:
    """`steps` noise levels from `first` down to `last` in even ratios, then 0."""
    return [first * (last / first) ** (i / max(steps - 1, 1)) for i in range(steps)] + [0.0]
