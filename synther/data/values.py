"""Columns that hold one value, two, whole numbers, or some numbers with an order between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from synther.data.kind import Array, Kind, Matrix

OFF = 1e-3
"""Of a grain, by which numbers on a lattice may be off."""
_LONGER, _MOST_STEPS = 8.0, 2.0**52


@final
@dataclass(frozen=True)
class Constant(Kind):
    """The same value in every row: not modelled, and returned exactly (integers above 2**53 too)."""

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
    """A number that follows from other columns (identities.py): not modelled, and computed when these are known."""

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
    """By multiples of what numbers in increasing order differ: the least difference, if all others are multiples."""
    with np.errstate(over="ignore"):
        away = np.asarray(values, np.float64) - values[0]
        grain = float(np.diff(away).min())
        if not away[-1] / grain < _MOST_STEPS:
            return 0.0
    reach = grain
    while reach < away[-1]:  # over longer and longer stretches, or the rounding of one difference would add up
        reach *= _LONGER
        longest = float(away[np.searchsorted(away, reach, side="right") - 1])
        grain = longest / max(round(longest / grain), 1) or grain
    multiples = away / grain
    return grain if np.abs(multiples - np.rint(multiples)).max() <= OFF else 0.0


@final
@dataclass(frozen=True)
class Levels(Kind):
    """Real numbers of which there are only some, such as multiples of 0.1: what is generated becomes the nearest."""

    scaled: ClassVar[bool] = True
    values: tuple[float, ...]
    """In increasing order, at least two."""

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.array(self.values)[self._nearest(matrix)]

    def _nearest(self, numbers: Array) -> NDArray[np.int64]:
        values = np.array(self.values)
        return np.searchsorted(values[:-1] + np.diff(values) / 2, numbers)

    @property
    def class_count(self) -> int:
        return len(self.values)

    def classes(self, source: Array) -> NDArray[np.int64]:
        return self._nearest(source[:, 0])


@final
@dataclass(frozen=True)
class Integer(Kind):
    """Whole numbers with an order between them: rounded and clipped.

    NOTE[paper]: the reference rounds nothing but terminals.
    """

    scaled: ClassVar[bool] = True
    low: float
    high: float

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.clip(np.rint(matrix), self.low, self.high)


@final
@dataclass(frozen=True)
class Binary(Kind):
    """Two values, 0 and 1 in the matrix and left unscaled, as the paper leaves terminals."""

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
