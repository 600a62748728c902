"""Samplers: free functions of (denoise, x, sigmas) that take rows x at noise sigmas[0] to sigmas[-1] = 0.

`denoise(x, sigma)` is any function that returns the expected clean rows, so that each sampler can be tested on data
whose denoiser is known exactly. Another sampler can be registered from outside: see `config.SAMPLERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy
import torch
from torch import Tensor

from synther.diffusion import edm
from synther.diffusion.config import SAMPLERS, NoiseConfig, SamplerConfig

Denoise = Callable[[Tensor, float], Tensor]


def euler(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Euler's method on the probability-flow ODE dx/dsigma = (x - D(x; sigma)) / sigma (Karras et al. 2022, Eq. 1, 3).

    First order, one call a step.
    """
    for sigma, sigma_next in pairwise(sigmas):
        d = (x - denoise(x, sigma)) / sigma
        x = x + (sigma_next - sigma) * d
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
    """Karras et al. 2022, Algorithm 2: each Heun step begins at a higher level sigma_hat. The paper's sampler."""
    steps = len(sigmas) - 1
    for sigma, sigma_next in pairwise(sigmas):
        # Raise the noise to sigma_hat.
        gamma = min(s_churn / steps, math.sqrt(2) - 1) if s_tmin <= sigma <= s_tmax else 0.0
        sigma_hat = sigma * (1 + gamma)
        if gamma > 0:
            eps = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
            x = torch.add(x, eps, alpha=s_noise * math.sqrt(sigma_hat**2 - sigma**2))
        # Step down to sigma_next.
        x = _heun_step(denoise, x, sigma_hat, sigma_next)
    return x


def _heun_step(denoise: Denoise, x: Tensor, sigma: float, sigma_next: float) -> Tensor:
    # Euler step.
    d = (x - denoise(x, sigma)) / sigma
    x_next = torch.add(x, d, alpha=sigma_next - sigma)
    if sigma_next == 0:
        return x_next
    # 2nd-order correction.
    d_next = (x_next - denoise(x_next, sigma_next)) / sigma_next
    return torch.add(x, d + d_next, alpha=(sigma_next - sigma) / 2)


def churned(
    denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator, config: SamplerConfig
) -> Tensor:
    """`stochastic_heun` with the s_ parameters of `config`."""
    churn = {"s_churn": config.s_churn, "s_tmin": config.s_tmin, "s_tmax": config.s_tmax, "s_noise": config.s_noise}
    return stochastic_heun(denoise, x, sigmas, generator, **churn)


def unipc(denoise: Denoise, x: Tensor, sigmas: Sequence[float], order: int = 3) -> Tensor:
    """A predictor-corrector for the same ODE, after UniPC (Zhao et al. 2023): one call a step.

    With lambda = -ln sigma, the flow over a step h is x(lambda + h) = e^-h x + int_0^h e^(t - h) D(lambda + t) dt. The
    integral is exact for the polynomial through the last `order` denoised rows. Once the network has denoised the rows
    that this predicts, the step is taken again with that value among them, which costs no further call.
    """
    known: list[tuple[float, Tensor]] = []  # (lambda, denoised rows), the latest first
    x_last = x
    for sigma, sigma_next in pairwise(sigmas):
        denoised = denoise(x, sigma)
        if sigma_next == 0:
            return denoised
        # Correct the step that led here.
        last, known = known, [(-math.log(sigma), denoised), *known][:order]
        if last:
            x = _exponential_step(x_last, last[0][0], known[0][0], known)
        # Predict the next one.
        x_last, x = x, _exponential_step(x, known[0][0], -math.log(sigma_next), known)
    return x


def _exponential_step(x: Tensor, start: float, end: float, known: Sequence[tuple[float, Tensor]]) -> Tensor:
    """x from lambda = `start` to `end`, where D is the polynomial through the `known` values."""
    h = end - start
    x = math.exp(-h) * x
    for weight, (_, denoised) in zip(_weights(tuple(place - start for place, _ in known), h), known, strict=True):
        x = torch.add(x, denoised, alpha=weight)
    return x


@lru_cache(maxsize=1024)  # every block of rows takes the same steps
def _weights(nodes: tuple[float, ...], h: float) -> list[float]:
    """int_0^h e^(t - h) l_j(t) dt, where l_j is the polynomial that is 1 at nodes[j] and 0 at the others."""
    moments = [-math.expm1(-h)]  # int_0^h e^(t - h) t^k dt, by parts
    for k in range(1, len(nodes)):
        moments.append(h**k - k * moments[-1])
    weights = []
    for j, node in enumerate(nodes):
        others = [other for i, other in enumerate(nodes) if i != j]
        coefficients = numpy.atleast_1d(numpy.poly(others))[::-1] / math.prod(node - other for other in others)
        weights.append(float(coefficients @ moments))
    return weights


def restart(denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator, *, times: int) -> Tensor:
    """Xu et al. 2023, "Restart Sampling": noise finished rows to sigmas[0] and solve the ODE from there, `times` over.

    It brings rows back onto the surface that the data lie on, such as that of the true dynamics, which the first pass
    misses by what the network got wrong at higher levels. Unlike one step to the expected clean row, it keeps what is
    random about the data: of a direction with std s, four restarts of four levels from 0.08 to 0.006 keep
    0.97 s or more down to s = 0.02.
    """
    for _ in range(times):
        eps = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = unipc(denoise, torch.add(x, eps, alpha=sigmas[0]), sigmas, order=2)
    return x


def log_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """Noise levels in even steps of ln sigma: a multistep method then errs alike at every scale of the data."""
    return edm.geometric_sigmas(steps, noise.sigma_max, noise.sigma_min)


def angle_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """Noise levels between which rows change alike. As the network sees it, a row is cos(a) data + sin(a) noise with
    tan(a) = sigma / sigma_data, and the angle a falls to 0 in even steps."""
    first = math.atan(noise.sigma_max / noise.sigma_data)
    between = [noise.sigma_data * math.tan(first * (1 - step / steps)) for step in range(1, steps)]
    return [noise.sigma_max, *between, 0.0]


def sigmas_of(config: SamplerConfig, noise: NoiseConfig) -> list[float]:
    """The noise levels that the sampler steps through."""
    return (SAMPLERS.get(config.kind).sigmas or edm.karras_sigmas)(config.steps, noise)


def sample(
    config: SamplerConfig, denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator
) -> Tensor:
    """The sampler that `config` names, and its restarts."""
    sampler = SAMPLERS.get(config.kind)
    x = sampler.solve(denoise, x, sigmas, *((generator, config) if sampler.stochastic else ()))
    if not config.restarts:
        return x
    low = edm.geometric_sigmas(config.restart_steps, config.restart_from, config.restart_to)
    return restart(denoise, x, low, generator, times=config.restarts)
