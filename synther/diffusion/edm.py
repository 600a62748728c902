"""Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models": the formulas."""

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
        self.raw: Callable[[Tensor, float, Tensor | None], Tensor]
        if dtype is None:
            self.raw = network.at_noise
        elif type(network) is Network:
            self.raw = InferenceNetwork(network, dtype).at_noise
        else:
            self.raw = _cast(network, dtype)

    def __call__(self, x: Tensor, sigma: float, given: Tensor | None = None) -> Tensor:
        """Where the network takes conditions, `given` (N, K) are those of the rows; NaN is unknown."""
        sigma_data = self.sigma_data
        raw = self.raw(c_in(sigma, sigma_data) * x, c_noise(sigma), given)
        return torch.add(c_skip(sigma, sigma_data) * x, raw, alpha=c_out(sigma, sigma_data))


Guidance = tuple[tuple[tuple[int, ...], float], ...]
"""Which conditions are shown together, and with which weight: ((0,), 2.0), ((1,), 1.5)."""


def guided(denoiser: Denoiser, x: Tensor, sigma: float, given: Tensor, guidance: Guidance) -> Tensor:
    """Classifier-free guidance (Ho and Salimans 2022): D = D_0 + sum over k of w_k (D_k - D_0).

    D_k is told the conditions of part k alone, D_0 those of none. Conditions in no part are always told. A single part
    of weight 1 is the conditional distribution itself, for one call of the network. Otherwise D_0 and all D_k are one
    call of so many times the rows.
    """
    if not guidance or (len(guidance) == 1 and guidance[0][1] == 1.0):
        return denoiser(x, sigma, given)
    guiding = {column for part, _ in guidance for column in part}
    told = given.repeat(1 + len(guidance), 1).view(1 + len(guidance), *given.shape)
    for place, part in enumerate([(), *(part for part, _ in guidance)]):
        for column in guiding.difference(part):
            told[place, :, column] = math.nan
    found = denoiser(x.repeat(1 + len(guidance), 1), sigma, told.flatten(0, 1)).view(1 + len(guidance), *x.shape)
    total = found[0]
    for place, (_, weight) in enumerate(guidance, 1):
        total = torch.add(total, found[place] - found[0], alpha=weight)
    return total


def _cast(network: DenoisingNetwork, dtype: torch.dtype) -> Callable[[Tensor, float, Tensor | None], Tensor]:
    """Any network without gradients, its matrix products in `dtype` where that is a short one."""

    @torch.no_grad()
    def raw(x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False):
            return network.at_noise(x, c_noise, *(() if given is None else (given,))).to(x.dtype)

    return raw


class Problem(NamedTuple):
    """What the network F has to learn: `target` (N, D) from `inputs` (N, D), which are c_in x, and `c_noise` (N, 1).

    Where it takes conditions, `given` (N, K) are those of the rows.
    """

    inputs: Tensor
    c_noise: Tensor
    target: Tensor
    given: Tensor | None = None


def draw_problem(y: Tensor, noise: NoiseConfig, generator: torch.Generator, hidden: Sequence[float] = ()) -> Problem:
    """Noise clean rows `y` (N, D) at random levels, ln sigma ~ N(p_mean, p_std^2) (Table 1), and state the target of F.

    The loss of the denoiser, lambda(sigma) |D(y + sigma eps; sigma) - y|^2, has lambda = 1 / c_out^2. So it is the
    squared error of F against (y - c_skip x) / c_out (Eq. 8). With x = y + sigma eps this is the expression below,
    which has no cancellation where sigma is small.

    With `hidden`, the last columns of `y` are conditions, and each is left unknown with its probability.
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
        given = conditions.masked_fill(drawn < torch.tensor(list(hidden), **like), math.nan)
    return Problem((y + sigma * eps) / norm, ln_sigma / 4, target, given)


Problems = Callable[[Tensor, NoiseConfig, torch.Generator, Sequence[float]], Problem]
"""Makes of rows what the network has to learn, as `draw_problem` does."""

Loss = Callable[[DenoisingNetwork, Problem], Tensor]
"""A scalar to minimise, written in plain PyTorch."""


def squared_error(network: DenoisingNetwork, problem: Problem) -> Tensor:
    """The mean squared error of F, which is the weighted loss of the denoiser (Eq. 8)."""
    told = () if problem.given is None else (problem.given,)
    found = network(problem.inputs, problem.c_noise, *told)
    return functional.mse_loss(found.to(problem.target.dtype), problem.target)


def posterior_covariance(covariance: Tensor, sigma: float) -> Tensor:
    """Of normal rows of this `covariance` (D, D), once they are known up to noise `sigma`: the inverse of the sum of
    the inverses of both covariances."""
    exact = covariance.double()
    noise = sigma**2 * torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
    left: Tensor = sigma**2 * torch.linalg.solve(exact + noise, exact)
    return left


def karras_sigmas(steps: int, noise: NoiseConfig) -> list[float]:
    """`steps` noise levels from sigma_max down to sigma_min, then 0 (Eq. 5)."""
    if steps == 1:
        return [noise.sigma_max, 0.0]
    first, last = noise.sigma_max ** (1 / noise.rho), noise.sigma_min ** (1 / noise.rho)
    return [(first + i / (steps - 1) * (last - first)) ** noise.rho for i in range(steps)] + [0.0]


def geometric_sigmas(steps: int, first: float, last: float) -> list[float]:
    """`steps` noise levels from `first` down to `last` in even ratios, then 0."""
    return [first * (last / first) ** (i / max(steps - 1, 1)) for i in range(steps)] + [0.0]
