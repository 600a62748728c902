"""Inputs of a regression besides the given columns: knots in a column, and products of a flag and a number.

`features` computes them. `bends` and `flag_products` choose knots and products that explain a part of the residuals of
a linear regression.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Maximum number of products of a flag and a number."""
WORTH = 0.02
"""Smallest share of an outcome's remaining variance that a bent column or a product has to explain, in rows that it was
not fitted on."""

_USUAL = 0.05  # smallest share of the rows that each value of a flag must have
_MOST_PAIRS = 512  # maximum number of products that are tried
_TRIED = 1 << 14  # number of rows on which knots and products are tried
_NOTHING = SMALLEST**2  # smallest variance (of 1) that counts as unexplained


def features(
    x: Matrix, knots: Sequence[tuple[int, tuple[float, ...]]], products: Sequence[tuple[int, int]] = ()
) -> Matrix:
    """Return the columns of `x` (N, G), then max(0, x - knot) for each knot, then the products of pairs of columns.
    (N, G + H)"""
    hinges = [np.maximum(x[:, place, None] - np.array(at), 0.0) for place, at in knots]
    first, second = ([pair[number] for pair in products] for number in (0, 1))
    return np.concatenate([x, *hinges, x[:, first] * x[:, second]], axis=1)


def flag_products(x: Matrix, left: Matrix) -> tuple[tuple[int, int], ...]:
    """Return the pairs of columns of `x` (N, G), one with two values and one with more, whose products explain a part
    of the residuals `left` (N, K).

    Example: an action of 3 reverses a coordinate, or a leg on the ground stops a fall. The pairs are chosen one after
    the other, by the share of variance that they explain in every second row.
    """
    x, left = x[:_TRIED], left[:_TRIED]
    two = [place for place, column in enumerate(x.T) if _is_flag(column)]
    numbers = [place for place, column in enumerate(x.T) if place not in two and len(np.unique(column[:100])) > 2]
    pairs = [(flag, number) for flag in two for number in numbers]
    if not 0 < len(pairs) <= _MOST_PAIRS or len(x) < 2 * ROWS_PER_WEIGHT * (x.shape[1] + left.shape[1] + MOST_PRODUCTS):
        return ()
    values = x[:, [flag for flag, _ in pairs]] * x[:, [number for _, number in pairs]]
    values -= values.mean(0)
    left = (left - left.mean(0))[:, left.std(0) > SMALLEST]
    fitted, judged = values[::2], values[1::2]
    sizes, others = (np.maximum(np.square(half).sum(0), _NOTHING) for half in (fitted, judged))
    chosen: list[int] = []
    while left.shape[1] and len(chosen) < MOST_PRODUCTS:
        slopes = product(fitted.T, left[::2]) / sizes[:, None]
        explained = 2 * slopes * product(judged.T, left[1::2]) - np.square(slopes) * others[:, None]
        gains = (explained / np.maximum(np.square(left[1::2]).sum(0), _NOTHING)).max(1)
        best = int(np.argmax(gains))
        if gains[best] < WORTH:
            break
        chosen.append(best)
        left = left - product(values[:, chosen], least_squares(values[::2][:, chosen], left[::2]))
    return tuple(sorted({pairs[one] for one in chosen}))


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
