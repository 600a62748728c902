"""Limits on what a row has to be computed for: a distance from a goal, the height of an arm of two links.

Such a limit is a surface: a sum of columns, of their squares and of their products, in which coordinates of a goal meet
those of a body, and sines meet cosines. One that separates the rows on both sides is found by logistic regression.
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
_ROUNDS, _KEPT = 3, 8_000  # in each of which the others that lie next to the surface are looked at, and how many
_RIDGE, _ITERATIONS, _HALVED, _SETTLED = 1e-8, 40, 4, 1e-3


@dataclass(frozen=True)
class Surface:
    """The height above it is 0 in the middle between the rows of its sides, or so."""

    columns: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: tuple[float, ...]
    """Of the columns, and of all products of two of them, the first with itself, the second, and so on."""

    def __post_init__(self) -> None:
        count = len(self.columns)
        right = (count, count, count * (count + 3) // 2)
        if (len(self.mean), len(self.std), len(self.weights)) != right or 0 in self.std or not count:
            raise DataError("a surface: expected mean and std of each column, and weights of columns and products")

    @classmethod
    def fit(cls, features: Array, wanted: NDArray[np.bool_], columns: Array) -> Surface | None:
        """One that has most rows that are `wanted` (N,) above it and most others below, in some `columns` of the
        features (N, F). None where these never change."""
        values = features[:, columns].astype(np.float64)
        mean, std = values.mean(0), values.std(0)
        varies = std > 1e-9 * np.maximum(np.abs(mean), 1e-300)
        if not varies.any():
            return None
        values, mean, std = (values[:, varies] - mean[varies]) / std[varies], mean[varies], std[varies]
        places = _telling(values, wanted)
        values = values[:, places]
        ends, others = np.flatnonzero(wanted), np.flatnonzero(~wanted)
        draw = np.random.default_rng(0)
        ends = draw.permutation(ends)[:_KEPT]
        near, weights = draw.permutation(others)[:_KEPT], None
        for _ in range(_ROUNDS):
            known = _products(torch.from_numpy(values[np.concatenate([ends, near])].T)).T
            weights = _logistic(known, len(ends), weights)
            height = _products(torch.from_numpy(values[others].T)).T @ weights[:-1]
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
        """What tells the heights (N,) of rows whose columns are (C, N) on a device."""
        mean, std, weights = (
            torch.tensor(each, dtype=torch.float64, device=device) for each in (self.mean, self.std, self.weights)
        )
        return lambda values: weights @ _products((values - mean[:, None]) / std[:, None])


def _products(values: Tensor) -> Tensor:
    """Columns (C, N), and all products of two of them. (C (C + 3) / 2, N)"""
    first, second = torch.triu_indices(len(values), len(values), device=values.device)
    return torch.cat([values, values[first] * values[second]])


def _telling(values: Array, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The columns (N, C) that tell the most, if there are too many: alone, or by their product with another."""
    if values.shape[1] <= MOST_COLUMNS:
        return np.arange(values.shape[1])
    own = values[wanted]
    shift = np.abs(own.T @ own / len(own) - values.T @ values / len(values))
    score = np.maximum(shift.max(1), np.abs(own.mean(0)))
    return np.sort(np.argsort(-score, kind="stable")[:MOST_COLUMNS])


def _logistic(known: Tensor, ends: int, start: Tensor | None) -> Tensor:
    """Weights and a constant for which the first `ends` rows of `known` (N, K) are above 0 and the others below, by
    Newton's method."""
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
