"""Find circular columns, such as an angle between -pi and pi, from steps across the end of their range.

A step from 3.1 to -3.1 is small. If the column is treated as a plain number, the outcome jumps although observation and
action hardly change, and a network smears it over the whole circle. So the matrix holds the next value on the side of
the observation, here 3.18, beyond the end of the range. Generated values are wrapped into the range again.

NOTE[paper]: the reference treats angles as plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synther.data.inference import Profile, Steps
from synther.data.kind import Array, Kind, Matrix, first_columns
from synther.data.numbers import Continuous, Spiked, Wrapped
from synther.data.spaces import Box, Space
from synther.data.values import Integer, Levels, grain_of

_CIRCLES = (2 * math.pi, 360.0)  # periods of angles; parts of their range may be empty
_ROUNDS = (1.0, 2.0, 7.0, 12.0, 24.0, 60.0)  # other usual periods: phases, days of a week, hours
_FILLED, _TOLERANCE = 0.95, 1e-3  # minimum share of a period that the values span, and tolerance beyond its ends
_FEWEST, _RAREST = 10, 3e-4  # minimum number of steps across the end, and their minimum share of all steps
_STRAYS = 0.01  # maximum share of steps that are longer than a quarter of a round
_STRAYS_ACROSS = 0.1  # the same, for steps across the end
_BINS, _THINNEST = 10, 0.01  # if it is no angle, each tenth of the range has at least 1 % of the mean number of rows


def find_wrapped(found: tuple[Kind, ...], steps: Steps, seen: Profile, space: Space | None) -> tuple[Kind, ...]:
    """Return the kinds of observations, in which circular columns of real numbers became `Wrapped`, and those of whole
    numbers and of levels have a period.

    `found` are the kinds so far, `steps` is a sample of steps, `seen` has the range of each column, and `space` is the
    declared observation space.
    """
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        low, high = seen.span(column)
        grain = _grain(kind)
        if grain is not None:
            for start, period, is_angle in _circles(low, high + grain, _declared(space, column)):
                if _goes_round(steps.before[:, column], steps.after[:, column], start, period, is_angle):
                    if isinstance(kind, (Integer, Levels)):
                        kind = replace(kind, period=period)
                    else:
                        kind = Wrapped(start, period)
                    break
        better.append(kind)
    return tuple(better)


def _grain(kind: Kind) -> float | None:
    """Return the distance of the last number to the first one a period later if the column is circular: the step of a
    lattice, and 0 for real numbers. None if a column of this kind cannot be circular."""
    if isinstance(kind, Levels):
        return grain_of(kind.values) or None
    return {Continuous: 0.0, Spiked: 0.0, Integer: 1.0}.get(type(kind))


def cosines_and_sines(values: Matrix, periods: Sequence[float]) -> Matrix:
    """Return the cosines of circular columns (N, C) with these periods, and then their sines. (N, 2 C)"""
    angles = values * (2 * np.pi / np.array(periods))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def unwrapped(before: Matrix, after: Matrix, period: float) -> Matrix:
    """Add whole periods to the values `after` a step (N,), so that they are as near as possible to those `before`."""
    return np.asarray(after - period * np.rint((after - before) / period))


def _declared(space: Space | None, column: int) -> tuple[float, float] | None:
    """Return the bounds of a column in the declared space. None if it is not declared as a part of a box."""
    for part in space or ():
        if column < part.width:
            return (part.low[column], part.high[column]) if isinstance(part, Box) else None
        column -= part.width
    return None


def _circles(low: float, high: float, declared: tuple[float, float] | None) -> Sequence[tuple[float, float, bool]]:
    """Return candidate circles for values from `low` to `high`: start, period, and whether the period is an angle's.

    The last candidate is the range of the values itself.
    """
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
    """Return whether the steps are those of a circular column that starts at `low` and has this `period`.

    Enough steps must lead across the end of the range. On the circle, nearly all steps must be shorter than a quarter.
    """
    across = np.abs(after - before) > period / 2
    if not math.isfinite(period) or across.sum() < max(_FEWEST, _RAREST * len(before)):
        return False
    strays = np.abs(unwrapped(before, after, period) - before) > period / 4
    if strays.mean() > _STRAYS or strays[across].mean() > _STRAYS_ACROSS:
        return False
    counts = np.histogram(before, _BINS, (low, low + period))[0]
    return is_angle or bool(counts.min() >= _THINNEST * len(before) / _BINS)
