"""The formulas of EDM: Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models".

The order is that of the paper: preconditioning (c_skip, c_out, c_in, c_noise), the denoiser D, the training target of
the network F, and the noise levels of sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from synther.diffusion.config import NoiseConfig
from synther.diffusion.networks import DenoisingNetwork, InferenceNetwork, Network

Sigma = TypeVar("Sigma", float, Tensor)


def c_skip(sigma: Sigma, sigma_data: float) -> Sigma:
    """Return the weight of the noisy row x in the denoiser (Table 1)."""
    return sigma_data**2 / (sigma**2 + sigma_data**2)


def c_out(sigma: Sigma, sigma_data: float) -> Sigma:
    """Return the weight of the network's output in the denoiser (Table 1)."""
    return sigma * sigma_data * c_in(sigma, sigma_data)


def c_in(sigma: Sigma, sigma_data: float) -> Sigma:
    """Return the factor that scales a noisy row x to variance 1 (Table 1)."""
    inverse: Sigma = (sigma**2 + sigma_data**2) ** -0.5
    return inverse


def c_noise(sigma: float) -> float:
    """Return the noise level in the form in which the network gets it (Table 1)."""
    return math.log(sigma) / 4


class Denoiser:
    """The denoiser D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), at one noise level for all rows (Eq. 7).

    If `dtype` is given, F runs in that type and without gradients. If it is None, F is the network itself, and
    gradients flow through it.
    """

    def __init__(self, network: DenoisingNetwork, noise: NoiseConfig, dtype: torch.dtype | None = None) -> None:
        self.sigma_data = noise.sigma_data
        self.raw: Callable[[Tensor, float, Tensor | None], Tensor]
        if dtype is None:
            self.raw = network.at_noise
        elif type(network) is Network:
            self.raw = InferenceNetwork(network, dtype).at_noise
        else:
            self.raw = _cast(network, dtype)

    def __call__(self, x: Tensor, sigma: float, given: Tensor | None = None) -> Tensor:
        """Return the denoised rows (N, D). `given` (N, K) are the conditions of the rows; NaN means unknown."""
        sigma_data = self.sigma_data
        raw = self.raw(c_in(sigma, sigma_data) * x, c_noise(sigma), given)
        return torch.add(c_skip(sigma, sigma_data) * x, raw, alpha=c_out(sigma, sigma_data))


Guidance = tuple[tuple[tuple[int, ...], float], ...]
"""Parts of the conditions, each with its guidance weight. ((0,), 2.0), ((1,), 1.5) means: guide by condition 0 with
weight 2, and by condition 1 with weight 1.5."""


def guided(denoiser: Denoiser, x: Tensor, sigma: float, given: Tensor, guidance: Guidance) -> Tensor:
    """Denoise with classifier-free guidance (Ho and Salimans 2022): D = D_0 + sum over k of w_k (D_k - D_0).

    D_k sees the conditions of part k only, and D_0 sees the conditions of no part. Conditions that belong to no part
    are always visible. A single part of weight 1 is the conditional distribution itself and needs one network call on
    the N rows. Otherwise D_0 and all D_k are computed in one call, on (1 + number of parts) N rows.
    """
    if not guidance or (len(guidance) == 1 and guidance[0][1] == 1.0):
        return denoiser(x, sigma, given)
    guiding = {column for part, _ in guidance for column in part}
    visible = given.repeat(1 + len(guidance), 1).view(1 + len(guidance), *given.shape)
    for place, part in enumerate([(), *(part for part, _ in guidance)]):
        for column in guiding.difference(part):
            visible[place, :, column] = math.nan
    repeated = x.repeat(1 + len(guidance), 1)
    denoised = denoiser(repeated, sigma, visible.flatten(0, 1)).view(1 + len(guidance), *x.shape)
    total = denoised[0]
    for place, (_, weight) in enumerate(guidance, 1):
        total = torch.add(total, denoised[place] - denoised[0], alpha=weight)
    return total


def _cast(network: DenoisingNetwork, dtype: torch.dtype) -> Callable[[Tensor, float, Tensor | None], Tensor]:
    """Return `network.at_noise` without gradients. If `dtype` is bf16, its matrix products run in bf16 (autocast)."""

    @torch.no_grad()
    def raw(x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False):
            return network.at_noise(x, c_noise, *(() if given is None else (given,))).to(x.dtype)

    return raw


class Problem(NamedTuple):
    """A regression problem for the network F: predict `target` (N, D) from `inputs` (N, D) and `c_noise` (N, 1).

    `inputs` are c_in x. `given` (N, K) are the conditions of the rows, or None if the network takes no conditions.
    """

    inputs: Tensor
    c_noise: Tensor
    target: Tensor
    given: Tensor | None = None


def draw_problem(y: Tensor, noise: NoiseConfig, generator: torch.Generator, hidden: Sequence[float] = ()) -> Problem:
    """Add noise to clean rows `y` (N, D) and return the inputs and the target of F.

    The noise levels are random, with ln sigma ~ N(p_mean, p_std^2) (Table 1). The loss of the denoiser is
    lambda(sigma) |D(y + sigma eps; sigma) - y|^2 with lambda = 1 / c_out^2. It is therefore the squared error of F
    against the target (y - c_skip x) / c_out (Eq. 8). The code inserts x = y + sigma eps into this target, which
    avoids cancellation at small sigma.

    If `hidden` is given, the last len(hidden) columns of `y` are conditions. Each condition is replaced by NaN
    (unknown) with its probability in `hidden`.
    """
    conditions = y[:, y.shape[1] - len(hidden) :]
    y = y[:, : y.shape[1] - len(hidden)]
    like: Any = {"device": y.device, "dtype": y.dtype}
    ln_sigma = noise.p_mean + noise.p_std * torch.randn(len(y), 1, generator=generator, **like)
    sigma = ln_sigma.exp()
    eps = torch.randn(y.shape, generator=generator, **like)
    norm = (sigma**2 + noise.sigma_data**2).sqrt()
    target = (y * (sigma / noise.sigma_data) - eps * noise.sigma_data) / norm
    given = None
    if hidden:
        drawn = torch.rand(conditions.shape, generator=generator, **like)
        # Column by column, because a GPU would have to wait for a tensor of these probabilities.
        is_hidden = [drawn[:, place] < probability for place, probability in enumerate(hidden)]
        given = conditions.masked_fill(torch.stack(is_hidden, 1), math.nan)
    return Problem((y + sigma * eps) / norm, ln_sigma / 4, target, given)


Problems = Callable[[Tensor, NoiseConfig, torch.Generator, Sequence[float]], Problem]
"""A function that turns rows into a regression problem for the network, such as `draw_problem`."""

Loss = Callable[[DenoisingNetwork, Problem], Tensor]
"""A function that returns the scalar to minimise. It is written in plain PyTorch."""


def squared_error(network: DenoisingNetwork, problem: Problem) -> Tensor:
    """Return the mean squared error of F, which is the weighted loss of the denoiser (Eq. 8)."""
    conditions = () if problem.given is None else (problem.given,)
    predicted = network(problem.inputs, problem.c_noise, *conditions)
    return functional.mse_loss(predicted.to(problem.target.dtype), problem.target)


def posterior_covariance(covariance: Tensor, sigma: float) -> Tensor:
    """Return the posterior covariance (D, D) of normal rows that were observed with noise of std `sigma`.

    `covariance` (D, D) is that of the prior, C. The posterior covariance is (C^-1 + sigma^-2 I)^-1.
    """
    exact = covariance.double()
    noise = sigma**2 * torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
    posterior: Tensor = sigma**2 * torch.linalg.solve(exact + noise, exact)
    return posterior


def karras_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """Return `steps` noise levels from sigma_max down to sigma_min, followed by 0 (Eq. 5)."""
    if steps == 1:
        return [noise.sigma_max, 0.0]
    first, last = noise.sigma_max ** (1 / noise.rho), noise.sigma_min ** (1 / noise.rho)
    return [(first + i / (steps - 1) * (last - first)) ** noise.rho for i in range(steps)] + [0.0]


def geometric_sigmas(steps: int, first: float, last: float) -> list[float]:
    """Return `steps` noise levels from `first` down to `last` with a constant ratio, followed by 0."""
    return [first * (last / first) ** (i / max(steps - 1, 1)) for i in range(steps)] + [0.0]
