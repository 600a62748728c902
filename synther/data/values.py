"""Kinds of columns with one value, two values, whole numbers, or a limited number of ordered values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from synther.data.kind import Array, Kind, Matrix
from synther.errors import DataError

OFF = 1e-3
"""Maximum distance of a number to its lattice, in lattice steps."""
_LONGER = 8.0  # factor by which the distance over which a lattice step is measured grows each time
_MOST_STEPS = 2.0**52  # a lattice has fewer steps than this, because float64 could not count more of them


@final
@dataclass(frozen=True)
class Constant(Kind):
    """A column with the same value in every row. It is not modelled and is decoded exactly, also integers above
    2**53."""

    value: int | float

    @property
    def matrix_width(self) -> int:
        return 0

    @property
    def expected(self) -> str:
        return f"{self.value!r}, the only value of the rows the layout was made from"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return np.asarray(source[:, 0] != self.value)

    def encode(self, source: Array) -> Matrix:
        return np.empty((len(source), 0))

    def decode(self, matrix: Matrix) -> Array:
        return np.full((len(matrix), 1), self.value)

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return ()


@final
@dataclass(frozen=True)
class Derived(Kind):
    """A number that is computed from other columns (identities.py, rewards.py), and therefore not modelled."""

    @property
    def matrix_width(self) -> int:
        return 0

    def encode(self, source: Array) -> Matrix:
        return np.empty((len(source), 0))

    def decode(self, matrix: Matrix) -> Array:
        return np.zeros((len(matrix), 1))

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return ()


def grain_of(values: Sequence[float]) -> float:
    """Return the step of the lattice that increasing numbers are on, or 0 if they are on no lattice.

    The step is the smallest difference of two neighbours. All other differences must be multiples of it.
    """
    with np.errstate(over="ignore"):
        away = np.asarray(values, np.float64) - values[0]
        grain = float(np.diff(away).min())
        if not away[-1] / grain < _MOST_STEPS:
            return 0.0
    reach = grain
    while reach < away[-1]:  # measured over longer and longer distances, or the rounding error of one would add up
        reach *= _LONGER
        longest = float(away[np.searchsorted(away, reach, side="right") - 1])
        grain = longest / max(round(longest / grain), 1) or grain
    multiples = away / grain
    return grain if np.abs(multiples - np.rint(multiples)).max() <= OFF else 0.0


@final
@dataclass(frozen=True)
class Levels(Kind):
    """A column with a limited set of real numbers, such as multiples of 0.1. A generated number is rounded to the
    nearest of them."""

    scaled: ClassVar[bool] = True
    values: tuple[float, ...]
    """The numbers in increasing order, at least two."""
    period: float = 0.0
    """Period if the column is circular, else 0."""

    def __post_init__(self) -> None:
        _check_period(self.period, self.values[0], self.values[-1])

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        near = 0.5 * (self.values[1] - self.values[0])  # the first value is also the nearest of numbers just below it
        values = np.array(self.values)
        return values[nearest(values, _wrapped(matrix, self.values[0] - near, self.period))]

    @property
    def circle(self) -> float:
        return self.period

    @property
    def class_count(self) -> int:
        return len(self.values)

    def classes(self, source: Array) -> NDArray[np.int64]:
        return nearest(np.array(self.values), source[:, 0])


@final
@dataclass(frozen=True)
class Integer(Kind):
    """Ordered whole numbers. Generated numbers are rounded, and clipped to the range from `low` to `high`.

    NOTE[paper]: the reference rounds nothing but terminals.
    """

    scaled: ClassVar[bool] = True
    low: float
    high: float
    period: float = 0.0
    """Period if the column is circular, such as 360 for a heading in whole degrees, else 0."""

    def __post_init__(self) -> None:
        _check_period(self.period, self.low, self.high)

    @property
    def circle(self) -> float:
        return self.period

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.clip(_wrapped(np.rint(matrix), self.low, self.period), self.low, self.high)


def nearest(values: Matrix, numbers: Array) -> NDArray[np.int64]:
    """Return the place of the nearest of increasing `values` (K,) for each of the numbers."""
    return np.searchsorted(values[:-1] + np.diff(values) / 2, numbers)


def _check_period(period: float, low: float, high: float) -> None:
    """Raise a `DataError` if numbers from `low` to `high` cannot be on a circle of this period. 0 means no circle."""
    if period and not high - low < period < math.inf:
        raise DataError(
            f"a circular column: expected a finite period longer than its range, got period {period:g} and numbers "
            f"from {low:g} to {high:g}"
        )


def _wrapped(numbers: Matrix, low: float, period: float) -> Matrix:
    """Return numbers plus whole periods, so that they are at least `low` and less than a period above it. Without a
    period they are returned as they are."""
    return low + np.remainder(numbers - low, period) if period else numbers


@final
@dataclass(frozen=True)
class Binary(Kind):
    """A column with two values, `low` and `high`. In the matrix they are 0 and 1 and are not scaled, like terminals in
    the paper."""

    low: float = 0.0
    high: float = 1.0
    threshold: float = 0.5

    @property
    def thresholds(self) -> tuple[float, ...]:
        return (self.threshold,)

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return names

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Binary:
        return replace(self, threshold=thresholds[0])

    @property
    def expected(self) -> str:
        return f"{self.low:g} or {self.high:g}"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return np.asarray((source[:, 0] != self.low) & (source[:, 0] != self.high))

    def encode(self, source: Array) -> Matrix:
        return np.asarray(source == self.high, np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.where(matrix > self.threshold, self.high, self.low)
