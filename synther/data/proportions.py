"""Find columns with changes in proportion to their values, such as prices or concentrations, and take their logarithms.

A change of 5 % is 0.05 at a price of 1, and 50 at a price of 1,000. A network that sees both on the same scale
generates the small changes hundreds of times too large. So the matrix holds the logarithms of such columns.

NOTE[paper]: the reference treats such columns as plain numbers.
"""

from __future__ import annotations

import numpy as np

from synther.data.inference import Profile, Steps
from synther.data.kind import Array, Kind, first_columns
from synther.data.numbers import Continuous, Logarithmic

_RANGE = 20.0  # minimum ratio of the 99 % quantile of a column to its 1 % quantile
_GROUPS, _FEWEST = 8, 50  # number of groups of rows by value before a step, and minimum mean number of rows in each
_UNEVEN = 8.0  # minimum ratio of the spread of changes in one group to that in another
_EVENER = 4.0  # that ratio must be this many times the same ratio of relative changes
_BEYOND = 10.0  # generated values may be this many times above the highest value seen, or below the lowest


def find_logarithmic(found: tuple[Kind, ...], steps: Steps, seen: Profile) -> tuple[Kind, ...]:
    """Return the kinds of observations, in which columns with proportional changes became `Logarithmic`.

    `found` are the kinds so far, `steps` is a sample of steps, and `seen` has the range of each column.
    """
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        low, high = seen.span(column)
        positive = isinstance(kind, Continuous) and low > 0 and bool(np.isfinite([1 / low, _BEYOND * high]).all())
        if positive and _is_proportional(steps.before[:, column], steps.after[:, column]):
            kind = Logarithmic(low / _BEYOND, high * _BEYOND)
        better.append(kind)
    return tuple(better)


def _is_proportional(before: Array, after: Array) -> bool:
    """Return whether the changes from `before` (N,) to `after` (N,) are in proportion to `before`."""
    smallest, largest = np.quantile(before, [0.01, 0.99])
    if len(before) < _GROUPS * _FEWEST or largest < _RANGE * smallest:
        return False
    groups = np.array_split(np.argsort(before, kind="stable"), _GROUPS)
    uneven, relative = (_unevenness(change, groups) for change in (after - before, np.log(after) - np.log(before)))
    return uneven > _UNEVEN and _EVENER * relative < uneven


def _unevenness(change: Array, groups: list[Array]) -> float:
    """Return the largest interquartile range of the changes in a group, divided by the smallest one."""
    spread = [float(np.subtract(*np.quantile(change[group], [0.75, 0.25]))) for group in groups]
    least = 1e-9 * max(spread)
    return max(spread) / max(min(spread), least) if max(spread) > 0 else 1.0
