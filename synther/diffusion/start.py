"""The noise that rows begin from, chosen so that the rows that come out of it have the real mean and covariance.

A fitted denoiser shrinks a little towards the middle of the data, as every regression does, so that generated columns
are a per cent or two too narrow and a little too correlated. The flow from noise to data is smooth, and along the
data's main directions nearly linear: a Gaussian of standard deviation s comes out of sigma eps as s eps. So what is
missing in the result can be put into the noise, and every row still follows the flow.

NOTE[paper]: the reference begins from plain noise. Its stochastic sampler has S_noise above 1 for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 2
FLOOR = 0.01  # directions with less variance than this, in which data has hardly any extent, are left alone
_MOST = 0.1  # a generator that is further off needs a better fit, not other noise
_CUT = 2.5  # stds at which values are cut, so that few far ones do not decide how wide the many are


@dataclass(frozen=True)
class Moments:
    """Mean (D,) and covariance (D, D) of scaled rows, cut at 2.5 stds, in float64.

    The far values of a heavy-tailed column decide about its variance, and a generator makes too few of them. To match
    that variance would widen all the others.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of rows (N, D)."""
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        products = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for first in range(0, len(rows), 1 << 16):
            exact = rows[first : first + (1 << 16)].double().clamp(-_CUT, _CUT)
            total += exact.sum(0)
            products += exact.t() @ exact
        mean = total / len(rows)
        return cls(mean, products / len(rows) - torch.outer(mean, mean))

    def cpu(self) -> Moments:
        return Moments(self.mean.cpu(), self.covariance.cpu())


@dataclass(frozen=True)
class Start:
    """Rows begin as sigma_max (matrix eps + shift), with eps standard normal."""

    matrix: Tensor
    shift: Tensor

    @classmethod
    def plain(cls, columns: int) -> Start:
        return cls(torch.eye(columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64))

    def draw(self, eps: Tensor) -> Tensor:
        """Standard normal numbers (N, D) to the noise to begin from, as yet without the factor sigma_max."""
        return torch.addmm(self.shift.to(eps), eps, self.matrix.t().to(eps))

    def corrected(self, real: Moments, generated: Moments, free: Sequence[int]) -> Start:
        """The start that gives `real`, if what comes out is linear in what goes in.

        A flow that makes `generated` of plain noise is then the symmetric root of its covariance G. Noise of covariance
        G^-1/2 R G^-1/2 comes out of it with R. For a start that was corrected before this is nearly so. Only the
        columns `free` are corrected: the others follow from them.
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
    """The start whose rows have the moments `real` in the columns `free`; `generate(start, round)` says what rows a
    start gives."""
    start = Start.plain(len(real.mean))
    for number in range(ROUNDS):
        start = start.corrected(real, generate(start, number), free)
    return start


def _stretch(generated: Tensor, real: Tensor) -> Tensor:
    """The root of G^-1/2 R G^-1/2, near 1."""
    inverse = _power(generated, -0.5)
    floored = real + FLOOR * torch.eye(len(real), dtype=real.dtype)
    inner = inverse @ floored @ inverse
    values, vectors = torch.linalg.eigh((inner + inner.t()) / 2)
    bounded: Tensor = (vectors * values.clamp(min=0).sqrt().clamp(1 - _MOST, 1 + _MOST)) @ vectors.t()
    return bounded


def _power(covariance: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    power: Tensor = (vectors * (values.clamp(min=0) + FLOOR) ** exponent) @ vectors.t()
    return power
