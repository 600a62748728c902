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

from synther.diffusion.config import SamplerConfig

Denoise = Callable[[Tensor, float], Tensor]


def euler(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Euler's method on the probability-flow ODE dx/dsigma = (x - D(x; sigma)) / sigma. First order."""
    for sigma, following in pairwise(sigmas):
        x = x + (following - sigma) * _slope(denoise, x, sigma)
    return x


def heun(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Heun's method on the same ODE (Karras et al. 2022, Algorithm 1). Second order, 2 steps - 1 calls."""
    for sigma, following in pairwise(sigmas):
        x = _heun_step(denoise, x, sigma, following)
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
    """Karras et al. 2022, Algorithm 2: each Heun step starts from a level raised by fresh noise. The paper's."""
    steps = len(sigmas) - 1
    for sigma, following in pairwise(sigmas):
        gamma = min(s_churn / steps, math.sqrt(2) - 1) if s_tmin <= sigma <= s_tmax else 0.0
        raised = sigma * (1 + gamma)
        if gamma > 0:
            fresh = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
            x = torch.add(x, fresh, alpha=s_noise * math.sqrt(raised**2 - sigma**2))
        x = _heun_step(denoise, x, raised, following)
    return x


def dpm_solver_pp_2m(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """DPM-Solver++(2M) of Lu et al. 2022: second order from one call a step, by remembering the last one."""
    before: Tensor | None = None
    before_h = 0.0
    for sigma, following in pairwise(sigmas):
        clean = denoise(x, sigma)
        if following == 0:
            return clean
        h = math.log(sigma / following)
        target = clean if before is None else torch.lerp(before, clean, 1 + h / (2 * before_h))
        x = torch.add((following / sigma) * x, target, alpha=-math.expm1(-h))
        before, before_h = clean, h
    return x


def refine(denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator) -> Tensor:
    """Noise finished rows to each of a few low levels in turn and take the expected clean row.

    y = x + sigma n, x = D(y; sigma) = y + sigma^2 score(y) is a step of Langevin dynamics with half of its noise: at
    half of the data's temperature. It pulls rows onto the surface that the data lie on, such as that of the true
    dynamics, which a solver of the ODE misses by what the network got wrong at higher levels. Along that surface it
    narrows the distribution: by about the sum of sigma^2 in variance, for data of variance 1.
    """
    for sigma in sigmas:
        fresh = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = denoise(torch.add(x, fresh, alpha=sigma), sigma)
    return x


def refinement_sigmas(config: SamplerConfig) -> list[float]:
    """The levels of `refine`, evenly spaced in their logarithm from the first to the last."""
    ratio = config.refine_to / config.refine_from
    return [config.refine_from * ratio ** (i / max(config.refine - 1, 1)) for i in range(config.refine)]


def sample(
    config: SamplerConfig, denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator
) -> Tensor:
    """The sampler that `config` names, and its refinement."""
    if config.kind == "sde":
        churn = {"s_churn": config.s_churn, "s_tmin": config.s_tmin, "s_tmax": config.s_tmax, "s_noise": config.s_noise}
        x = stochastic_heun(denoise, x, sigmas, generator, **churn)
    else:
        x = {"heun": heun, "euler": euler, "dpm++2m": dpm_solver_pp_2m}[config.kind](denoise, x, sigmas)
    return refine(denoise, x, refinement_sigmas(config), generator)


def _slope(denoise: Denoise, x: Tensor, sigma: float) -> Tensor:
    return (x - denoise(x, sigma)) / sigma


def _heun_step(denoise: Denoise, x: Tensor, sigma: float, following: float) -> Tensor:
    slope = _slope(denoise, x, sigma)
    ahead = torch.add(x, slope, alpha=following - sigma)
    if following == 0:
        return ahead
    return torch.add(x, slope + _slope(denoise, ahead, following), alpha=(following - sigma) / 2)
