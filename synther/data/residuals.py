"""Outcomes (next observation, reward) as what a linear model of the rest of the row leaves unexplained.

A next observation is mostly the observation itself, moved a little. A network that generates both as columns of
deviation 1 has to reproduce that agreement to a fraction of its own error, and what is random about an outcome is
small beside that error. Here the linear part is taken out before the network sees a row and put back afterwards:
what remains has deviation 1, so the network models the randomness of an outcome at full size, and a relation that is
linear (a position that moves by velocity times time) holds exactly in every generated row.

NOTE[paper]: the reference generates the next observation itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

SMALLEST = 1e-4
"""Residuals are scaled up to deviation 1, but never by more than its inverse: less than this is rounding."""
ROWS_PER_WEIGHT = 10
"""Rows for each input of a regression below which none is fitted."""
_RIDGE = 1e-9
_NOTHING = 1e-12  # variance, of 1, below which an outcome explains nothing about others


@dataclass(frozen=True)
class Residuals:
    """A regression of the columns `outcomes` on the columns `given` and on the outcomes before them in the list.

    Columns are of deviation 1. The order is that of a pivoted Cholesky factorisation: the outcome that is the least
    explained comes first, so that a new velocity, which is random, explains a new position, which follows from it.
    """

    given: tuple[int, ...]
    outcomes: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    """For each outcome, those of the given columns and then of the outcomes; its own and later ones are 0."""
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    """Mean and deviation of what remains of each outcome."""

    @classmethod
    def fit(
        cls, rows: Matrix, given: Sequence[int], outcomes: Sequence[int], order: Sequence[int] | None = None
    ) -> Residuals | None:
        """Fit on `rows` (N, D) of deviation 1; None where there is nothing to explain, or are too few rows.

        `order` is that of an earlier fit, to be kept as far as the columns are the same.
        """
        inputs = len(given) + len(outcomes)
        if not given or not outcomes or len(rows) < ROWS_PER_WEIGHT * inputs:
            return None
        x, y = rows[:, list(given)], rows[:, list(outcomes)]
        x, y = x - x.mean(0), y - y.mean(0)
        count = len(rows)
        among = x.T @ x / count + _RIDGE * np.eye(len(given))
        slopes = np.linalg.solve(among, x.T @ y / count)  # (G, K)
        left = y - x @ slopes
        remaining = left.T @ left / count  # (K, K)
        first = [] if order is None else [outcomes.index(column) for column in order if column in outcomes]
        places, factor = _pivoted(remaining, first)
        # left[:, places] = residual @ factor.T, so that residual = left - (earlier outcomes) @ something
        earlier = np.eye(len(places)) - np.linalg.inv(factor).T  # strictly upper triangular
        direct = slopes[:, places] @ (np.eye(len(places)) - earlier)
        weights = np.concatenate([direct, earlier]).T
        chosen = [outcomes[place] for place in places]
        residual = rows[:, chosen] - np.concatenate([rows[:, list(given)], rows[:, chosen]], axis=1) @ weights.T
        shift, scale = residual.mean(0), np.maximum(residual.std(0), SMALLEST)
        return cls(
            tuple(given),
            tuple(chosen),
            tuple(map(tuple, weights.tolist())),
            tuple(shift.tolist()),
            tuple(scale.tolist()),
        )

    @cached_property
    def _direct(self) -> Matrix:
        """Weights of the given columns, (G, K)."""
        return np.array(self.weights).T[: len(self.given)]

    @cached_property
    def _own(self) -> Matrix:
        """1 minus the weights of earlier outcomes, (K, K): residuals are outcomes @ this, less the given columns'."""
        return np.asarray(np.eye(len(self.outcomes)) - np.array(self.weights).T[len(self.given) :])

    @cached_property
    def _own_inverse(self) -> Matrix:
        return np.asarray(np.linalg.inv(self._own), np.float64)

    def take_out(self, rows: Matrix) -> None:
        """Replace the outcomes of `rows` (N, D), of deviation 1, by their scaled residuals."""
        residual = rows[:, list(self.outcomes)] @ self._own - rows[:, list(self.given)] @ self._direct
        rows[:, list(self.outcomes)] = (residual - np.array(self.shift)) / np.array(self.scale)

    def put_back(self, rows: Matrix) -> None:
        """The reverse of `take_out`."""
        residual = rows[:, list(self.outcomes)] * np.array(self.scale) + np.array(self.shift)
        rows[:, list(self.outcomes)] = (residual + rows[:, list(self.given)] @ self._direct) @ self._own_inverse

    def moved(self, known: Sequence[int], to: Sequence[int] | None = None) -> Residuals:
        """The same regression for a matrix whose column `to[i]` (i itself, if none is given) is what `known[i]` was."""
        places = {column: place for place, column in enumerate(known)}
        places = places if to is None else {column: to[place] for column, place in places.items()}
        return replace(
            self,
            given=tuple(places[column] for column in self.given),
            outcomes=tuple(places[column] for column in self.outcomes),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: list(getattr(self, name)) for name in ("given", "outcomes", "weights", "shift", "scale")}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Residuals:
        weights = tuple(map(tuple, entry["weights"]))
        others = {name: tuple(entry[name]) for name in ("given", "outcomes", "shift", "scale")}
        return cls(weights=weights, **others)


def _pivoted(covariance: Matrix, first: Sequence[int]) -> tuple[list[int], Matrix]:
    """An order of the columns of a covariance (K, K), and the unit lower triangular factor L of the covariance in that
    order, which is L diag L^T. Columns in `first` come first, then always the one with the most variance left."""
    left = covariance.copy()
    count = len(left)
    waiting = list(first) + [None] * (count - len(first))
    places: list[int] = []
    columns = []
    for forced in waiting:
        free = [place for place in range(count) if place not in places]
        place = forced if forced is not None else max(free, key=lambda candidate: left[candidate, candidate])
        places.append(place)
        variance = left[place, place]
        if variance > _NOTHING:
            column = left[:, place] / variance
            left = left - variance * np.outer(column, column)
        else:
            column = np.zeros(count)
        column[[earlier for earlier in places if earlier != place]] = 0.0
        column[place] = 1.0
        columns.append(column)
    return places, np.array(columns).T[places]
