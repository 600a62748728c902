"""Samplers: free functions of (denoiser, x at sigmas[0], sigmas) that return x at sigmas[-1] = 0.

`denoise(x, sigma)` is any function that returns the expected clean rows, so that each sampler can be tested on data
whose denoiser is known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from synther.diffusion import edm
from synther.diffusion.config import NoiseConfig, SamplerConfig

Denoise = Callable[[Tensor, float], Tensor]


def euler(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Euler's method on the probability-flow ODE dx/dsigma = (x - D(x; sigma)) / sigma. First order."""
    for sigma, sigma_next in pairwise(sigmas):
        x = x + (sigma_next - sigma) * _slope(denoise, x, sigma)
    return x


def heun(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Heun's method on the same ODE (Karras et al. 2022, Algorithm 1). Second order, 2 steps - 1 calls."""
    for sigma, sigma_next in pairwise(sigmas):
        x = _heun_step(denoise, x, sigma, sigma_next)
    return x


def stochastic_heun(
    denoise: Denoise,
    x: Tensor,
    sigmas: Sequence[float],
    generator: torch.Generator,
    *,
    s_churn: float = 80.0,
    s_tmin: float = 0.05,
    s_tmax: float = 50.0,
    s_noise: float = 1.003,
) -> Tensor:
    """Karras et al. 2022, Algorithm 2: each Heun step starts from a level sigma_hat by eps noise. The paper's."""
    steps = len(sigmas) - 1
    for sigma, sigma_next in pairwise(sigmas):
        gamma = min(s_churn / steps, math.sqrt(2) - 1) if s_tmin <= sigma <= s_tmax else 0.0
        sigma_hat = sigma * (1 + gamma)
        if gamma > 0:
            eps = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
            x = torch.add(x, eps, alpha=s_noise * math.sqrt(sigma_hat**2 - sigma**2))
        x = _heun_step(denoise, x, sigma_hat, sigma_next)
    return x


def dpm_solver_pp_2m(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """DPM-Solver++(2M) of Lu et al. 2022: second order from one call a step, by remembering the last one."""
    before: Tensor | None = None
    before_h = 0.0
    for sigma, sigma_next in pairwise(sigmas):
        clean = denoise(x, sigma)
        if sigma_next == 0:
            return clean
        h = math.log(sigma / sigma_next)
        target = clean if before is None else torch.lerp(before, clean, 1 + h / (2 * before_h))
        x = torch.add((sigma_next / sigma) * x, target, alpha=-math.expm1(-h))
        before, before_h = clean, h
    return x


def restart(denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator, *, times: int) -> Tensor:
    """Xu et al. 2023, "Restart Sampling": noise finished rows to sigmas[0] and solve the ODE from there, `times` over.

    It brings rows back onto the surface that the data lie on, such as that of the true dynamics, which the first pass
    misses by what the network got wrong at higher levels. Unlike one step to the expected clean row, it keeps what is
    random about the data: of a direction with deviation s, six levels from 0.1 to 0.003 keep 0.97 s or more down to
    s = 0.02.
    """
    for _ in range(times):
        eps = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = dpm_solver_pp_2m(denoise, torch.add(x, eps, alpha=sigmas[0]), sigmas)
    return x


def sigmas_of(config: SamplerConfig, noise: NoiseConfig) -> list[float]:
    """The noise levels that the sampler steps through.

    DPM-Solver++ is at home in the logarithm of sigma. Even steps there make its error the same for every scale of the
    data, so that `start_scale` can take it away at all scales at once.
    """
    if config.kind == "dpm++2m":
        return edm.geometric_sigmas(config.steps, noise.sigma_max, noise.sigma_min)
    return edm.karras_sigmas(config.steps, noise)


def start_scale(config: SamplerConfig, sigmas: Sequence[float], sigma_data: float) -> float:
    """What the noise that rows begin from is multiplied with, so that few steps make no column too wide.

    On Gaussian data of deviation sigma_data a deterministic sampler is a multiplication. With 16 steps of
    DPM-Solver++(2M) rows come out 2.5 % too wide; this begins with noise that is as much too narrow.
    """
    if config.kind == "sde":  # whose own noise makes up for what is too wide or too narrow
        return 1.0
    one = torch.full((1, 1), sigmas[0], dtype=torch.float64)
    wide = _SOLVERS[config.kind](lambda x, sigma: edm.c_skip(sigma, sigma_data) * x, one, sigmas)
    return min(max(sigma_data / float(wide), 0.9), 1.1)  # where steps are so few that this is not enough, none helps


def sample(
    config: SamplerConfig, denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator
) -> Tensor:
    """The sampler that `config` names, and its restarts."""
    if config.kind == "sde":
        churn = {"s_churn": config.s_churn, "s_tmin": config.s_tmin, "s_tmax": config.s_tmax, "s_noise": config.s_noise}
        x = stochastic_heun(denoise, x, sigmas, generator, **churn)
    else:
        x = _SOLVERS[config.kind](denoise, x, sigmas)
    if not config.restarts:
        return x
    low = edm.geometric_sigmas(config.restart_steps, config.restart_from, config.restart_to)
    return restart(denoise, x, low, generator, times=config.restarts)


def _slope(denoise: Denoise, x: Tensor, sigma: float) -> Tensor:
    return (x - denoise(x, sigma)) / sigma


def _heun_step(denoise: Denoise, x: Tensor, sigma: float, sigma_next: float) -> Tensor:
    slope = _slope(denoise, x, sigma)
    x_next = torch.add(x, slope, alpha=sigma_next - sigma)
    if sigma_next == 0:
        return x_next
    return torch.add(x, slope + _slope(denoise, x_next, sigma_next), alpha=(sigma_next - sigma) / 2)


_SOLVERS = {"heun": heun, "euler": euler, "dpm++2m": dpm_solver_pp_2m}
