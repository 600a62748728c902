"""Lines by least squares."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]

ROWS_PER_WEIGHT = 10
"""Rows for each input of a regression below which none is fitted."""
_RIDGE = 1e-9


def least_squares(x: Matrix, y: Matrix, narrow: float = 0.0) -> Matrix:
    """Least squares about the means, with a very small ridge, along the directions of `x` of more variance than
    `narrow`. (G, K)"""
    return Directions(x, narrow).slopes(y)


class Directions:
    """What least squares in columns `x` (N, G) need of these."""

    def __init__(self, x: Matrix, narrow: float = 0.0) -> None:
        self._x = x - x.mean(0)
        variance, directions = np.linalg.eigh(product(self._x.T, self._x) / len(x))
        inverse = np.where(variance > narrow, 1 / (np.maximum(variance, 0) + _RIDGE), 0.0)
        self._inverse = product(directions * inverse, directions.T)

    def slopes(self, y: Matrix) -> Matrix:
        """Those of lines for `y` (N, K). (G, K)"""
        return product(self._inverse, product(self._x.T, y - y.mean(0)) / len(y))


class Straight:
    """Lines in columns `x` (N, G) of mean 0 and std 1. What all of them have in common is computed once."""

    def __init__(self, x: Matrix) -> None:
        self._x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        self._squares = product(self._x.T, self._x)

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        return _factored(self._squares, len(self._x))

    def fit(self, y: Matrix, known: NDArray[np.bool_] | None = None) -> tuple[Matrix, float]:
        """The line of `y` (N,) in all rows, or in the `known` ones (N,): slopes (G,), and level where all columns are
        0."""
        factors, x = self._whole if known is None or known.all() else self._some(known), self._x
        if known is not None:
            x, y = x[known], y[known]
        found = torch.linalg.lu_solve(*factors, torch.from_numpy(product(x.T, y[:, None]) / len(x)))
        slopes = found[:, 0].numpy()
        return slopes[:-1], float(slopes[-1])

    def _some(self, known: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        others = self._x[~known]
        if 2 * len(others) > len(known):
            own = self._x[known]
            return _factored(product(own.T, own), len(own))
        return _factored(self._squares - product(others.T, others), len(known) - len(others))

    def __call__(self, slopes: Matrix, level: float) -> Matrix:
        """A line in all rows. (N,)"""
        return product(self._x, np.append(slopes, level)[:, None])[:, 0]


def _factored(squares: Matrix, count: int) -> tuple[Tensor, Tensor]:
    ridge = np.append(np.full(len(squares) - 1, _RIDGE), 0.0)
    factors, pivots = torch.linalg.lu_factor(torch.from_numpy(squares / count + np.diag(ridge)))
    return factors, pivots


class Units(NamedTuple):
    """Mean and std of some columns."""

    mean: Matrix
    std: Matrix

    @classmethod
    def of(cls, x: Matrix) -> Units | None:
        """Those of the columns of `x` (N, G), with a std of 1 where one never changes; None where a square of one
        overflows."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(0), x.std(0)
        varies = (x != x[:1]).any(0) & (std > 0)  # the mean of equal numbers is rounded
        return cls(mean, np.where(varies, std, 1.0)) if np.isfinite((*mean, *std)).all() else None

    def undone(self, slopes: Matrix, level: float) -> tuple[tuple[float, ...], float]:
        """Slopes and level of the same line in columns as they were before they were put into these units."""
        weights = slopes / self.std
        return tuple(weights.tolist()), level - float(self.mean @ weights)


def product(first: Matrix, second: Matrix) -> Matrix:
    """first @ second, by PyTorch: where two cores are busy, NumPy's product takes fifty times as long."""
    return np.asarray(torch.mm(torch.from_numpy(first), torch.from_numpy(second)).numpy())
