"""Columns that go in a circle, such as an angle between -pi and pi: which they are, told by steps across the end.

A step from 3.1 to -3.1 is a small one. Taken for a large one, it is an outcome that jumps where observation and action
hardly change, which a network smears over the whole circle. So the matrix has the next value on the side of the
observation, beyond the end of the range, and rows come back wrapped.

NOTE[paper]: the reference takes angles for plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from synther.data.inference import Profile, Steps
from synther.data.kind import Array, Kind, Matrix, first_columns
from synther.data.numbers import Continuous, Wrapped
from synther.data.spaces import Box, Space

_CIRCLES = (2 * math.pi, 360.0)  # angles, which need not point everywhere
_ROUNDS = (1.0, 2.0, 7.0, 12.0, 24.0, 60.0)  # such as phases, days of a week and hours
_FILLED, _TOLERANCE = 0.95, 1e-3  # share of a circle that the values span, and what may lie beyond it
_FEWEST, _RAREST = 10, 3e-4  # steps across the end, and their share of all
_STRAYS, _STRAYS_ACROSS = 0.01, 0.1  # shares of steps, and of those across the end, that may be longer than a quarter
_BINS, _THINNEST = 10, 0.01  # of a range that is no angle; each has this share of the mean


def find_wrapped(found: tuple[Kind, ...], told: Steps, seen: Profile, space: Space | None) -> tuple[Kind, ...]:
    """The kinds `found` of observations, those columns that go in a circle as such."""
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        if isinstance(kind, Continuous):
            for low, period, is_angle in _circles(*seen.span(column), _declared(space, column)):
                if _goes_round(told.before[:, column], told.after[:, column], low, period, is_angle):
                    kind = Wrapped(low, period)
                    break
        better.append(kind)
    return tuple(better)


def unwrapped(before: Matrix, after: Matrix, period: float) -> Matrix:
    """The values `after` (N,) a step, as near to those `before` it as whole rounds bring them."""
    return np.asarray(after - period * np.rint((after - before) / period))


def _declared(space: Space | None, column: int) -> tuple[float, float] | None:
    """The bounds that a box gives the column."""
    for part in space or ():
        if column < part.width:
            return (part.low[column], part.high[column]) if isinstance(part, Box) else None
        column -= part.width
    return None


def _circles(low: float, high: float, declared: tuple[float, float] | None) -> Sequence[tuple[float, float, bool]]:
    """Where values from `low` to `high` may begin and how long a round may be, and whether that is an angle's."""
    likely = [(start, period, period in _CIRCLES) for period in (*_CIRCLES, *_ROUNDS) for start in (-period / 2, 0.0)]
    if declared is not None and np.isfinite(declared).all():
        likely.append((declared[0], declared[1] - declared[0], False))
    found = [
        (start, period, is_angle)
        for start, period, is_angle in likely
        if start - _TOLERANCE * period <= low
        and high <= start + (1 + _TOLERANCE) * period
        and high - low >= _FILLED * period
    ]
    return [*found, (low, high - low, False)]


def _goes_round(before: Array, after: Array, low: float, period: float, is_angle: bool) -> bool:
    """Whether steps lead across the end, and these and the others are short ones in a circle."""
    across = np.abs(after - before) > period / 2
    if not math.isfinite(period) or across.sum() < max(_FEWEST, _RAREST * len(before)):
        return False
    strays = np.abs(unwrapped(before, after, period) - before) > period / 4
    if strays.mean() > _STRAYS or strays[across].mean() > _STRAYS_ACROSS:
        return False
    counts = np.histogram(before, _BINS, (low, low + period))[0]
    return is_angle or bool(counts.min() >= _THINNEST * len(before) / _BINS)
