"""Inputs of a regression besides the given columns: knots in a column, and products of columns.

`features` computes them. `bends` and `products_of` choose knots and products that explain a part of the residuals of
a linear regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement
from itertools import product as pairs_of
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.lattices import SMALLEST
from synther.data.lines import ROWS_PER_WEIGHT, least_squares, product

Matrix = NDArray[np.float64]

KNOTS = 32
"""Number of knots in a bent column."""
MOST_BENT = 8
"""Maximum number of columns with knots."""
MOST_PRODUCTS = 32
"""Maximum number of products."""
MOST_FACTORS = 5
"""Maximum number of columns in a product."""
WORTH = 0.02
"""Smallest share of an outcome's remaining variance that a bent column or a product has to explain, in rows that it was
not fitted on."""

_USUAL = 0.05  # smallest share of the rows that each value of a flag must have
_MOST_TRIED = 512  # maximum number of products that are tried
_TRIED = 1 << 14  # number of rows on which knots and products are tried
_NOTHING = SMALLEST**2  # smallest variance (of 1) that counts as unexplained


def features(
    x: Matrix, knots: Sequence[tuple[int, tuple[float, ...]]], products: Sequence[tuple[int, ...]] = ()
) -> Matrix:
    """Return the columns of `x` (N, G), then max(0, x - knot) for each knot, then the products of columns.
    (N, G + H)"""
    hinges = [np.maximum(x[:, place, None] - np.array(at), 0.0) for place, at in knots]
    return np.concatenate([x, *hinges, _products(x, products)], axis=1)


def products_of(x: Matrix, left: Matrix) -> tuple[tuple[int, ...], ...]:
    """Return the sets of columns of `x` (N, G) whose products explain a part of the residuals `left` (N, K).

    Examples: an action of 3 reverses a coordinate, a leg on the ground stops a fall, a pole falls by its speed times
    the cosine of its angle. Pairs are chosen first, then longer sets. A pair has at most one column with two values. If
    there are too many pairs, only those with such a column are tried.
    """
    x, left = x[: _TRIED // 2], left[: _TRIED // 2]
    flags = [place for place, column in enumerate(x.T) if _is_flag(column)]
    numbers = [place for place, column in enumerate(x.T) if place not in flags and len(np.unique(column[:100])) > 2]
    pairs, others = list(pairs_of(flags, numbers)), list(combinations(numbers, 2))
    pairs += others if len(pairs) + len(others) <= _MOST_TRIED else []
    left = left[:, left.std(0) > SMALLEST]
    enough = len(x) >= 2 * ROWS_PER_WEIGHT * (x.shape[1] + left.shape[1] + MOST_PRODUCTS)
    if not 0 < len(pairs) <= _MOST_TRIED or not enough or not left.shape[1]:
        return ()
    chosen = _chosen(x, left, pairs)
    for size in range(3, MOST_FACTORS + 1):
        if len(chosen) < MOST_PRODUCTS:
            candidates = [*chosen, *_longer(chosen, sorted((*flags, *numbers)), size)]
            chosen = _chosen(x, left, candidates[:_MOST_TRIED], len(chosen))
    return chosen


def _longer(chosen: Sequence[tuple[int, ...]], columns: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return all sets of `size` columns, with repetition. If these are too many: the `chosen` sets with one column
    more."""
    if comb(len(columns) + size - 1, size) <= _MOST_TRIED:
        return list(combinations_with_replacement(columns, size))
    longer = dict.fromkeys(tuple(sorted((*known, column))) for known in chosen for column in columns)
    return [candidate for candidate in longer if candidate not in chosen]


def _chosen(
    x: Matrix, left: Matrix, candidates: Sequence[tuple[int, ...]], known: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return those `candidates`, sets of columns of `x` (N, G), whose products explain a part of `left` (N, K).

    They are chosen one after the other, by the share of variance that they explain in every second row. The first
    `known` candidates are chosen already. Only the part of a product counts that `x` itself does not explain.
    """
    values = _products(x, candidates)
    values -= product(x, least_squares(x, values))
    fitted, judged = _Half(values[::2], left[::2]), _Half(values[1::2], left[1::2])
    chosen: list[int] = []
    weights = np.empty((0, left.shape[1]))
    while len(chosen) < min(MOST_PRODUCTS, len(candidates)):
        if len(chosen) < known:
            best = len(chosen)
        else:
            slopes = fitted.left_of(weights) / fitted.sizes
            explained = 2 * slopes * judged.left_of(weights) - np.square(slopes) * judged.sizes
            gains = (explained / judged.variance(chosen, weights)).max(1)
            best = int(np.argmax(gains))
            if gains[best] < WORTH:
                break
        chosen.append(best)
        fitted.add(best)
        judged.add(best)
        weights = least_squares(fitted.values[:, chosen], fitted.left)
    return tuple(candidates[one] for one in dict.fromkeys(chosen))


def _products(x: Matrix, sets: Sequence[tuple[int, ...]]) -> Matrix:
    """Return the product of each set of columns of `x` (N, G). (N, P)"""
    return np.array([x[:, list(places)].prod(1) for places in sets]).reshape(len(sets), len(x)).T


def bends(x: Matrix, left: Matrix) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """Return the columns of `x` (N, G), and their knots, in which knots explain a part of the residuals `left` (N, K).

    Columns are chosen greedily, by the share of variance that they explain in every second row. The best column comes
    first, and each further one has to explain what the columns before it leave. So of several columns that nearly
    determine each other, only one is chosen.
    """
    every = -(-len(x) // _TRIED)
    x, left = x[::every], left[::every]
    if len(x) < 2 * ROWS_PER_WEIGHT * (x.shape[1] + left.shape[1] + MOST_BENT * KNOTS):
        return ()
    places = []
    for place, column in enumerate(x.T):
        values = np.unique(column[:1000])
        knots = _knots(column) if len(values) >= KNOTS else tuple(values[1:-1].tolist())
        if knots:
            places.append((place, knots))
    chosen: list[tuple[int, tuple[float, ...]]] = []
    while places and len(chosen) < MOST_BENT:
        tried = sorted(((*_bend(x[:, place], left, knots), (place, knots)) for place, knots in places), key=_gain)
        gain, explained, best = tried[-1]
        if gain < WORTH:
            break
        left = left - explained
        chosen.append(best)
        places = [bend for gain, _, bend in tried[:-1] if gain >= WORTH][-2 * MOST_BENT :]
    return tuple(sorted(chosen))


class _Half:
    """Half of the rows: candidates `values` (N, P), and what they are to explain, `left` (N, K)."""

    def __init__(self, values: Matrix, left: Matrix) -> None:
        self.values, self.left = values - values.mean(0), left - left.mean(0)
        self.sizes = np.maximum(np.square(self.values).sum(0), _NOTHING)[:, None]
        self._with_left = product(self.values.T, self.left)
        self._with_chosen = np.empty((values.shape[1], 0))

    def add(self, one: int) -> None:
        """Take one candidate into the regression."""
        self._with_chosen = np.hstack([self._with_chosen, product(self.values.T, self.values[:, [one]])])

    def left_of(self, weights: Matrix) -> Matrix:
        """Return the products of the candidates with what a regression with `weights` (C, K) leaves. (P, K)"""
        return np.asarray(self._with_left - product(self._with_chosen, weights), np.float64)

    def variance(self, chosen: Sequence[int], weights: Matrix) -> NDArray[np.float64]:
        """Return the sum of squares of what the regression on the `chosen` candidates leaves. (K,)"""
        left = self.left - product(self.values[:, list(chosen)], weights)
        return np.asarray(np.maximum(np.square(left).sum(0), _NOTHING), np.float64)


def _is_flag(column: NDArray[np.float64]) -> bool:
    """Return whether a column (N,) has two values, and neither of them is rare."""
    low, high = column.min(), column.max()
    return bool(np.isin(column, (low, high)).all()) and min((column == low).mean(), (column == high).mean()) >= _USUAL


def _knots(column: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the knots of a column (N,): most of them evenly spaced between its quantiles of 1 % and 99 %.

    Some lie further out, because a curve may bend in these tails too.
    """
    lowest, low, high, highest = np.quantile(column, [0.001, 0.01, 0.99, 0.999])
    parts = np.linspace(lowest, low, 3), np.linspace(low, high, KNOTS - 4), np.linspace(high, highest, 3)
    every = np.unique(np.concatenate(parts))
    return tuple(every[(column.min() < every) & (every < column.max())].tolist())


def _gain(tried: tuple[float, Matrix, Any]) -> float:
    return tried[0]


def _bend(column: NDArray[np.float64], left: Matrix, knots: tuple[float, ...]) -> tuple[float, Matrix]:
    """Fit a piecewise linear function of a column (N,) to the residuals `left` (N, K) in every second row.

    Returns the largest share of a residual's variance that it explains in the other rows, and its predictions (N, K).
    """
    half = np.arange(len(column)) % 2 == 0
    basis = features(column[:, None], ((0, knots),))
    slopes = least_squares(basis[half], left[half])
    explained = left[half].mean(0) + product(basis - basis[half].mean(0), slopes)
    variance = np.maximum(left[~half].var(0), _NOTHING)
    gain = 1 - ((left - explained)[~half] ** 2).mean(0) / variance
    return float(gain[left.std(0) > SMALLEST].max(initial=0.0)), explained
