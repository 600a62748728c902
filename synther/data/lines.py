"""Linear regression by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.errors import FormatError
from synther.schema import finite

Matrix = NDArray[np.float64]

ROWS_PER_WEIGHT = 10
"""Minimum number of rows for each input of a regression. With fewer rows it is not fitted."""
_RANKS = 257  # number of quantiles that describe the residuals of a regression
_DRAWING = 23  # first part of the seed of draws
_RIDGE = 1e-9  # added to the variance of every input, so that collinear inputs do not fail


def least_squares(x: Matrix, y: Matrix, narrow: float = 0.0) -> Matrix:
    """Return the slopes of a least squares regression of `y` (N, K) on `x` (N, G), with an intercept. (G, K)

    There is a very small ridge penalty. Directions of `x` with a variance of `narrow` or less are ignored.
    """
    return Directions(x, narrow).slopes(y)


class Directions:
    """Inputs `x` (N, G) of least squares regressions. Their covariance is inverted once, for any number of `slopes`."""

    def __init__(self, x: Matrix, narrow: float = 0.0) -> None:
        self._x = x - x.mean(0)
        variance, directions = np.linalg.eigh(product(self._x.T, self._x) / len(x))
        inverse = np.where(variance > narrow, 1 / (np.maximum(variance, 0) + _RIDGE), 0.0)
        self._inverse = product(directions * inverse, directions.T)

    def slopes(self, y: Matrix) -> Matrix:
        """Return the slopes of a regression of `y` (N, K) on the inputs. (G, K)"""
        return product(self._inverse, product(self._x.T, y - y.mean(0)) / len(y))


class Straight:
    """Linear regressions on inputs `x` (N, G) of mean 0 and std 1. What all regressions share is computed once."""

    def __init__(self, x: Matrix) -> None:
        self._x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        self._squares = product(self._x.T, self._x)

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        """Factorised moments of all rows."""
        return _factored(self._squares, len(self._x))

    def fit(self, y: Matrix, known: NDArray[np.bool_] | None = None) -> tuple[Matrix, float]:
        """Fit a regression of `y` (N,) to all rows, or to the rows marked in `known` (N,).

        Returns the slopes (G,) and the intercept.
        """
        factors, x = self._whole if known is None or known.all() else self._some(known), self._x
        if known is not None:
            x, y = x[known], y[known]
        found = torch.linalg.lu_solve(*factors, torch.from_numpy(product(x.T, y[:, None]) / len(x)))
        slopes = found[:, 0].numpy()
        return slopes[:-1], float(slopes[-1])

    def _some(self, known: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Factorise the moments of the rows marked in `known` (N,), computed from whichever side has fewer rows."""
        others = self._x[~known]
        if 2 * len(others) > len(known):
            own = self._x[known]
            return _factored(product(own.T, own), len(own))
        return _factored(self._squares - product(others.T, others), len(known) - len(others))

    def __call__(self, slopes: Matrix, level: float) -> Matrix:
        """Return the predictions of a regression with these slopes (G,) and intercept `level` for all rows. (N,)"""
        return product(self._x, np.append(slopes, level)[:, None])[:, 0]


def is_linear(y: Matrix, x: Matrix, left: float) -> bool:
    """Return whether `y` (N,) is a linear function of the columns of `x` (N, G), up to the share `left` of its std."""
    units = Units.of(x)
    if units is None or len(y) < ROWS_PER_WEIGHT * (x.shape[1] + 1):
        return False
    lines = Straight((x - units.mean) / units.std)
    return bool(np.std(y - lines(*lines.fit(y))) < left * y.std())


def _factored(squares: Matrix, count: int) -> tuple[Tensor, Tensor]:
    """Return the LU factorisation of the mean moments of `count` rows, with a ridge for all inputs but the constant."""
    ridge = np.append(np.full(len(squares) - 1, _RIDGE), 0.0)
    factors, pivots = torch.linalg.lu_factor(torch.from_numpy(squares / count + np.diag(ridge)))
    return factors, pivots


class Units(NamedTuple):
    """Mean and std of some columns, to standardise them."""

    mean: Matrix
    std: Matrix

    @classmethod
    def of(cls, x: Matrix) -> Units | None:
        """Return mean and std of the columns of `x` (N, G). A constant column gets a std of 1.

        Returns None if a mean or std is not finite, because squares of the numbers overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(0), x.std(0)
        varies = (x != x[:1]).any(0) & (std > 0)  # the std of equal numbers may be above 0: their mean is rounded
        return cls(mean, np.where(varies, std, 1.0)) if np.isfinite((*mean, *std)).all() else None

    def undone(self, slopes: Matrix, level: float) -> tuple[tuple[float, ...], float]:
        """Convert slopes and intercept for standardised columns to those for the original columns."""
        weights = slopes / self.std
        return tuple(weights.tolist()), level - float(self.mean @ weights)


def product(first: Matrix, second: Matrix) -> Matrix:
    """Return `first @ second`, computed by PyTorch. NumPy takes fifty times as long when two cores are busy."""
    return np.asarray(torch.mm(torch.from_numpy(first), torch.from_numpy(second)).numpy())


def predicted(given: Matrix, weights: Sequence[float], level: float) -> Matrix:
    """Return the predictions of a regression with these weights and intercept in rows of `given` (N, G). (N,)"""
    return np.asarray(product(given, np.array(weights)[:, None])[:, 0] + level)


@dataclass(frozen=True)
class Line:
    """A fitted regression of one number, with the distribution of its residuals, from which numbers can be drawn."""

    weights: tuple[float, ...]
    """Weight of each input."""
    level: float
    """Intercept of the regression."""
    off: tuple[float, ...]
    """Quantiles of the residuals, at equally spaced levels from 0 to 1."""

    @classmethod
    def fit(cls, x: Matrix, y: Matrix) -> Line | None:
        """Fit a regression of `y` (N,) on `x` (N, G). Returns None if there are too few rows, or if numbers are so
        large that squares overflow."""
        units = Units.of(x) if len(y) >= ROWS_PER_WEIGHT * (x.shape[1] + 1) else None
        if units is None:
            return None
        lines = Straight((x - units.mean) / units.std)
        slopes, level = lines.fit(y)
        return cls(*units.undone(slopes, level), _ranked(y - lines(slopes, level)))

    @classmethod
    def flat(cls, inputs: int, y: Matrix) -> Line:
        """Return a line that ignores all its `inputs`: the mean of `y` (N,), and the distribution around it."""
        return cls((0.0,) * inputs, float(y.mean()), _ranked(y - y.mean()))

    def __call__(self, x: Matrix) -> Matrix:
        """Return the predictions for rows with these inputs (N, G). (N,)"""
        return predicted(x, self.weights, self.level)

    def drawn(self, x: Matrix, number: int) -> Matrix:
        """Draw numbers for rows with these inputs (N, G). `number` is part of the seed. (N,)"""
        rank = np.random.default_rng([_DRAWING, number]).random(len(x))
        return np.asarray(self(x) + np.interp(rank, np.linspace(0, 1, len(self.off)), self.off))

    def check(self, inputs: int, name: str, which: str) -> None:
        """Raise an error if the entry `name` of a file does not have one weight for each of the `inputs` inputs, which
        are the matrix columns `which`."""
        finite((self.level, *self.weights, *self.off), name)
        if len(self.weights) != inputs or len(self.off) < 2:
            raise FormatError(
                f"{name}: expected {inputs} weights, one for each matrix column of {which}, and at least 2 quantiles, "
                f"got {len(self.weights)} and {len(self.off)}"
            )


def _ranked(off: Matrix) -> tuple[float, ...]:
    return tuple(np.quantile(off, np.linspace(0, 1, _RANKS)).tolist())
