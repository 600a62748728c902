"""Columns whose changes are in proportion to them: prices, concentrations, distances to a far star.

A step of 5 % is 0.05 at a price of 1 and 50 at one of 1,000. Beside the larger steps a network does not see the smaller
ones, and makes them hundreds of times too large. So the matrix has the logarithms of such columns.

NOTE[paper]: the reference takes them for plain numbers.
"""

from __future__ import annotations

import numpy as np

from synther.data.inference import Profile, Steps
from synther.data.kind import Array, Kind, first_columns
from synther.data.numbers import Continuous, Logarithmic

_RANGE = 20.0  # times, that the largest hundredth is the smallest one
_GROUPS, _FEWEST = 8, 50  # of rows, by the value before a step, and rows in each
_UNEVEN = 8.0  # times, that changes in one group are those in another
_EVENER = 4.0  # times, that relative changes are alike
_BEYOND = 10.0  # times the values seen that may be generated


def find_logarithmic(found: tuple[Kind, ...], told: Steps, seen: Profile) -> tuple[Kind, ...]:
    """The kinds `found` of observations, columns whose changes are in proportion to them as such."""
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        low, high = seen.span(column)
        positive = isinstance(kind, Continuous) and low > 0 and bool(np.isfinite([1 / low, _BEYOND * high]).all())
        if positive and _is_proportional(told.before[:, column], told.after[:, column]):
            kind = Logarithmic(low / _BEYOND, high * _BEYOND)
        better.append(kind)
    return tuple(better)


def _is_proportional(before: Array, after: Array) -> bool:
    smallest, largest = np.quantile(before, [0.01, 0.99])
    if len(before) < _GROUPS * _FEWEST or largest < _RANGE * smallest:
        return False
    groups = np.array_split(np.argsort(before, kind="stable"), _GROUPS)
    uneven, relative = (_unevenness(change, groups) for change in (after - before, np.log(after) - np.log(before)))
    return uneven > _UNEVEN and _EVENER * relative < uneven


def _unevenness(change: Array, groups: list[Array]) -> float:
    """How many times as far changes spread in one group as in another."""
    spread = [float(np.subtract(*np.quantile(change[group], [0.75, 0.25]))) for group in groups]
    least = 1e-9 * max(spread)
    return max(spread) / max(min(spread), least) if max(spread) > 0 else 1.0
