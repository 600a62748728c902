"""Choose the initial noise of sampling so that synthetic rows have the mean and covariance of real rows.

A fitted denoiser shrinks its predictions a little towards the mean of the data, as every regression does. So the
columns of synthetic rows are one or two per cent too narrow and slightly too correlated. The flow from noise to data is
smooth, and nearly linear along the main directions of the data: noise sigma eps becomes s eps along a direction of
standard deviation s. So the initial noise can be stretched and shifted by what the synthetic rows lack. Every row still
follows the flow.

Read `Start`, the initial noise, then `match`, which measures synthetic rows and corrects the start.

NOTE[paper]: the reference begins from plain noise. Its stochastic sampler has S_noise above 1 for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 2
"""Number of times that `match` measures synthetic rows and corrects the start."""
FLOOR = 0.01
"""Variance that is added to every direction. Directions with less variance than this are hardly corrected."""
_MOST = 0.1  # maximum correction, as a share: a model with a larger error needs a better fit, not other noise
_CUT = 2.5  # values are clipped to this many stds, so that a few extreme values do not determine the variance


@dataclass(frozen=True)
class Moments:
    """Mean (D,) and covariance (D, D) in float64 of scaled rows, with values clipped to 2.5 stds.

    The variance of a heavy-tailed column depends mainly on its extreme values, and a generator makes too few of them.
    If the variance with them was matched, all other values would become too wide.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Return the moments of rows (N, D)."""
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        products = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for first in range(0, len(rows), 1 << 16):
            exact = rows[first : first + (1 << 16)].double().clamp(-_CUT, _CUT)
            total += exact.sum(0)
            products += exact.t() @ exact
        mean = total / len(rows)
        return cls(mean, products / len(rows) - torch.outer(mean, mean))

    def cpu(self) -> Moments:
        """Return a copy on the CPU."""
        return Moments(self.mean.cpu(), self.covariance.cpu())


@dataclass(frozen=True)
class Start:
    """The distribution of the initial noise: sigma_max (matrix eps + shift), where eps is standard normal."""

    matrix: Tensor
    shift: Tensor

    @classmethod
    def plain(cls, columns: int) -> Start:
        """Return the uncorrected start: standard normal noise times sigma_max."""
        return cls(torch.eye(columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64))

    def draw(self, eps: Tensor) -> Tensor:
        """Transform standard normal numbers (N, D) to initial noise (N, D), without the factor sigma_max."""
        return torch.addmm(self.shift.to(eps), eps, self.matrix.t().to(eps))

    def corrected(self, real: Moments, generated: Moments, free: Sequence[int]) -> Start:
        """Return the start with which synthetic rows have the moments `real`, assuming that the flow is linear.

        `generated` are the moments of synthetic rows from the present start. A linear flow that turns plain noise into
        rows of covariance G is G^1/2. It turns noise of covariance G^-1/2 R G^-1/2 into rows of covariance R. This
        holds nearly for a start that is already corrected. Only the columns `free` are corrected, because the other
        columns follow from them.
        """
        chosen = torch.tensor(list(free), dtype=torch.long)
        block = chosen[:, None], chosen
        stretch = torch.eye(len(real.mean), dtype=torch.float64)
        stretch[block] = _stretch(generated.covariance[block], real.covariance[block])
        variance, directions = torch.linalg.eigh(real.covariance[block])
        variance = variance.clamp(min=0)
        gap = (real.mean - generated.mean)[chosen]
        missing = (variance.sqrt() / (variance + FLOOR)) * (directions.t() @ gap)
        shift = self.shift.clone()
        shift[chosen] += directions @ missing.clamp(-_MOST, _MOST)
        return Start(stretch @ self.matrix, shift)


def match(real: Moments, generate: Callable[[Start, int], Moments], free: Sequence[int]) -> Start:
    """Return a start with which synthetic rows have the moments `real` in the columns `free`.

    `generate(start, round)` returns the moments of synthetic rows that are sampled from a start.
    """
    start = Start.plain(len(real.mean))
    for number in range(ROUNDS):
        start = start.corrected(real, generate(start, number), free)
    return start


def _stretch(generated: Tensor, real: Tensor) -> Tensor:
    """Return the root of G^-1/2 R G^-1/2, with its eigenvalues limited to 1 +- _MOST."""
    inverse = _power(generated, -0.5)
    floored = real + FLOOR * torch.eye(len(real), dtype=real.dtype)
    inner = inverse @ floored @ inverse
    values, vectors = torch.linalg.eigh((inner + inner.t()) / 2)
    bounded: Tensor = (vectors * values.clamp(min=0).sqrt().clamp(1 - _MOST, 1 + _MOST)) @ vectors.t()
    return bounded


def _power(covariance: Tensor, exponent: float) -> Tensor:
    """Return (covariance + FLOOR I)^exponent, the symmetric matrix power."""
    values, vectors = torch.linalg.eigh(covariance)
    power: Tensor = (vectors * (values.clamp(min=0) + FLOOR) ** exponent) @ vectors.t()
    return power
