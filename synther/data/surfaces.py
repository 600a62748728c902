"""Find quadratic surfaces that separate two groups of rows, such as terminal rows from all others.

Many limits concern no single column but a function of several: the distance to a goal, or the height of an arm with two
links. Such a limit is a surface: a weighted sum of columns, of their squares and of their products (goal times body
coordinates, sine times cosine). The surface is found by logistic regression. termination.py uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.errors import DataError

Array = NDArray[Any]

MOST_COLUMNS = 16
"""Maximum number of columns in a surface."""
_ROUNDS = 3  # number of fits; after each, the negative rows nearest to the surface are chosen for the next
_KEPT = 8_000  # maximum number of positive rows, and of negative rows, in a fit
_RIDGE = 1e-8  # L2 penalty of the weights
_ITERATIONS = 40  # maximum number of Newton steps
_HALVED = 4  # number of step lengths tried in a Newton step: 1, 1/2, 1/4, 1/8
_SETTLED = 1e-3  # Newton's method stops when the loss falls by a smaller share than this


@dataclass(frozen=True)
class Surface:
    """A quadratic function of some columns, without a constant. Its value is called the height of a row.

    It is larger in the wanted rows than in the others. The tree in termination.py learns the threshold between them.
    """

    columns: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: tuple[float, ...]
    """Weights of the standardised columns, and then of all products of two: first with first, first with second, ..."""

    def __post_init__(self) -> None:
        count = len(self.columns)
        right = (count, count, count * (count + 3) // 2)
        if (len(self.mean), len(self.std), len(self.weights)) != right or 0 in self.std or not count:
            raise DataError(
                f"a surface of {count} columns: expected at least one column, a mean and a std other than 0 of each, "
                f"and {right[2]} weights, got {len(self.mean)} means, {len(self.std)} stds and {len(self.weights)} "
                f"weights"
            )

    @classmethod
    def fit(cls, features: Array, wanted: NDArray[np.bool_], columns: Array) -> Surface | None:
        """Fit a surface in some `columns` of the features (N, F) that separates rows by height.

        Rows marked in `wanted` (N,) get large heights, the others small ones. Returns None if all columns are constant.
        """
        values = features[:, columns].astype(np.float64)
        mean, std = values.mean(0), values.std(0)
        varies = std > 1e-9 * np.maximum(np.abs(mean), 1e-300)
        if not varies.any():
            return None
        values, mean, std = (values[:, varies] - mean[varies]) / std[varies], mean[varies], std[varies]
        places = _most_telling(values, wanted)
        values = values[:, places]
        ends, others = np.flatnonzero(wanted), np.flatnonzero(~wanted)
        draw = np.random.default_rng(0)
        ends = draw.permutation(ends)[:_KEPT]
        near, weights = draw.permutation(others)[:_KEPT], None
        for _ in range(_ROUNDS):
            known = _products(torch.from_numpy(values[np.concatenate([ends, near])].T)).T
            weights = _logistic(known, len(ends), weights)
            height = _heights(torch.from_numpy(values[others].T), weights[:-1])
            near = others[torch.topk(height, min(_KEPT, len(others))).indices.numpy()]
        assert weights is not None
        chosen = np.asarray(columns)[varies][places]
        return cls(
            tuple(chosen.tolist()),
            tuple(mean[places].tolist()),
            tuple(std[places].tolist()),
            tuple(weights[:-1].tolist()),
        )

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return a function from the columns (C, N) of rows, on `device`, to their heights (N,)."""
        mean, std, weights = (
            torch.tensor(each, dtype=torch.float64, device=device) for each in (self.mean, self.std, self.weights)
        )
        return lambda values: _heights((values - mean[:, None]) / std[:, None], weights)


def _products(values: Tensor) -> Tensor:
    """Return columns (C, N), followed by all products of two of them. (C (C + 3) / 2, N)"""
    first, second = torch.triu_indices(len(values), len(values), device=values.device)
    return torch.cat([values, values[first] * values[second]])


def _heights(values: Tensor, weights: Tensor) -> Tensor:
    """Return `weights @ _products(values)` (N,), without the memory that all products would need."""
    count = len(values)
    first, second = torch.triu_indices(count, count, device=values.device)
    curved = values.new_zeros(count, count)
    curved[first, second] = weights[count:]
    return weights[:count] @ values + (values * (curved @ values)).sum(0)


def _most_telling(values: Array, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the indices of at most `MOST_COLUMNS` columns of `values` (N, C), which are standardised.

    These are the columns with the largest difference between `wanted` rows and all rows: in their mean, or in the mean
    of their product with some column.
    """
    if values.shape[1] <= MOST_COLUMNS:
        return np.arange(values.shape[1])
    positive = values[wanted]
    shift = np.abs(positive.T @ positive / len(positive) - values.T @ values / len(values))
    score = np.maximum(shift.max(1), np.abs(positive.mean(0)))
    return np.sort(np.argsort(-score, kind="stable")[:MOST_COLUMNS])


def _logistic(known: Tensor, ends: int, start: Tensor | None) -> Tensor:
    """Fit a logistic regression by Newton's method. Returns K weights and an intercept.

    The first `ends` rows of `known` (N, K) are positive, the others negative. Both classes have the same total weight.
    `start` are the weights to start from.
    """
    known = torch.cat([known, known.new_ones(len(known), 1)], dim=1)
    weights = known.new_zeros(known.shape[1]) if start is None else start
    sign = torch.where(torch.arange(len(known)) < ends, 1.0, -1.0).double()
    share = torch.where(sign > 0, 0.5 / ends, 0.5 / max(len(known) - ends, 1))

    def loss(weights: Tensor) -> Tensor:
        open_ends = torch.nn.functional.softplus(-sign * (known @ weights))
        return (share * open_ends).sum() + _RIDGE * weights.square().sum()

    least = loss(weights)
    for _ in range(_ITERATIONS):
        wrong = torch.sigmoid(-sign * (known @ weights))
        gradient = known.T @ (share * sign * wrong) - 2 * _RIDGE * weights
        curvature = (known * (share * wrong * (1 - wrong))[:, None]).T @ known
        curvature.diagonal().add_(2 * _RIDGE)
        step = torch.linalg.solve(curvature, gradient)
        tried = [(loss(weights + step / 2**halved), halved) for halved in range(_HALVED)]
        reached, halved = min(tried)
        if not reached < least * (1 - _SETTLED):
            break
        least, weights = reached, weights + step / 2**halved
    return weights
