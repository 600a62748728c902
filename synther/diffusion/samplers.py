"""Samplers: functions of (denoise, x, sigmas) that take rows x from noise level sigmas[0] to sigmas[-1] = 0.

`denoise(x, sigma)` is any function that returns the expected clean rows. So each sampler can be tested on data with an
exactly known denoiser. Users can register other samplers: see `config.SAMPLERS`.
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
    """Solve the probability-flow ODE dx/dsigma = (x - D(x; sigma)) / sigma with Euler's method.

    Karras et al. 2022, Eq. 1 and 3. The method has order 1 and takes one call per step.
    """
    for sigma, sigma_next in pairwise(sigmas):
        d = (x - denoise(x, sigma)) / sigma
        x = x + (sigma_next - sigma) * d
    return x


def heun(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Solve the same ODE with Heun's method (Karras et al. 2022, Algorithm 1). Order 2, 2 steps - 1 calls."""
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
    """Sample with the stochastic sampler of Karras et al. 2022, Algorithm 2, which the SynthER paper uses.

    Before each Heun step, the noise is raised to a higher level sigma_hat.
    """
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
    """Take one Heun step from sigma to sigma_next. A step to 0 is an Euler step."""
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
    """Call `stochastic_heun` with the s_ parameters of `config`."""
    churn = {"s_churn": config.s_churn, "s_tmin": config.s_tmin, "s_tmax": config.s_tmax, "s_noise": config.s_noise}
    return stochastic_heun(denoise, x, sigmas, generator, **churn)


def unipc(denoise: Denoise, x: Tensor, sigmas: Sequence[float], order: int = 3) -> Tensor:
    """Solve the same ODE with a predictor-corrector method after UniPC (Zhao et al. 2023). It takes one call per step.

    With lambda = -ln sigma, the flow over a step h is x(lambda + h) = e^-h x + int_0^h e^(t - h) D(lambda + t) dt.
    D is replaced by the polynomial through the last `order` denoised rows, for which the integral is exact. This
    predicts the rows at the next level, and the network denoises them. Then the step is repeated with this new value in
    the polynomial (the correction), without another network call.
    """
    known: list[tuple[float, Tensor]] = []  # (lambda, denoised rows), the latest first
    x_last = x
    for sigma, sigma_next in pairwise(sigmas):
        denoised = denoise(x, sigma)
        if sigma_next == 0:
            return denoised
        # Correct the previous step.
        last, known = known, [(-math.log(sigma), denoised), *known][:order]
        if last:
            x = _exponential_step(x_last, last[0][0], known[0][0], known)
        # Predict the next step.
        x_last, x = x, _exponential_step(x, known[0][0], -math.log(sigma_next), known)
    return x


def _exponential_step(x: Tensor, start: float, end: float, known: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Take x from lambda = `start` to `end`. D is the polynomial through the `known` pairs (lambda, denoised rows)."""
    h = end - start
    x = math.exp(-h) * x
    for weight, (_, denoised) in zip(_weights(tuple(place - start for place, _ in known), h), known, strict=True):
        x = torch.add(x, denoised, alpha=weight)
    return x


@lru_cache(maxsize=1024)  # the steps are the same for every block of rows
def _weights(nodes: tuple[float, ...], h: float) -> list[float]:
    """Return int_0^h e^(t - h) l_j(t) dt for each node j. l_j is the Lagrange polynomial: 1 at node j, 0 at the
    others."""
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
    """Repeat `times`: add noise of level sigmas[0] to finished rows and solve the ODE again (Xu et al. 2023, "Restart
    Sampling").

    Real rows often lie near a surface, for example that of the true dynamics. Errors of the network at high noise
    levels move synthetic rows away from this surface, and restarts bring them back. In contrast to one step to the
    expected clean row, restarts keep the randomness of the data: in a direction of std s >= 0.02, four restarts with
    four levels from 0.08 to 0.006 keep a std of at least 0.97 s.
    """
    for _ in range(times):
        eps = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = unipc(denoise, torch.add(x, eps, alpha=sigmas[0]), sigmas, order=2)
    return x


def log_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """Return noise levels in equal steps of ln sigma, followed by 0.

    With them, a multistep method has similar errors at all scales of the data.
    """
    return edm.geometric_sigmas(steps, noise.sigma_max, noise.sigma_min)


def angle_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """Return noise levels between which rows change by similar amounts, followed by 0.

    The network's input is cos(a) data + sin(a) noise, with tan(a) = sigma / sigma_data. The angle a falls to 0 in equal
    steps.
    """
    first = math.atan(noise.sigma_max / noise.sigma_data)
    between = [noise.sigma_data * math.tan(first * (1 - step / steps)) for step in range(1, steps)]
    return [noise.sigma_max, *between, 0.0]


def sigmas_of(config: SamplerConfig, noise: NoiseConfig) -> list[float]:
    """Return the noise levels of the sampler that `config` names, from sigma_max to 0."""
    return (SAMPLERS.get(config.kind).sigmas or edm.karras_sigmas)(config.steps, noise)


def sample(
    config: SamplerConfig, denoise: Denoise, x: Tensor, sigmas: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Take rows x (N, D) from noise sigmas[0] to 0 with the sampler that `config` names, then do its restarts."""
    sampler = SAMPLERS.get(config.kind)
    x = sampler.solve(denoise, x, sigmas, *((generator, config) if sampler.stochastic else ()))
    if not config.restarts:
        return x
    low = edm.geometric_sigmas(config.restart_steps, config.restart_from, config.restart_to)
    return restart(denoise, x, low, generator, times=config.restarts)
