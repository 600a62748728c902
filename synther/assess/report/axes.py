"""Linear and logarithmic axes: they map values to coordinates of a drawing, and place ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

MOST_DECADES = 8
"""Largest number of decades of a logarithmic axis. Smaller values are drawn at its lower end."""


@dataclass(frozen=True)
class Axis:
    """A function from values between `low` and `high` to coordinates between `start` and `stop`."""

    low: float
    high: float
    start: float
    """Coordinate of `low`, in units of the drawing."""
    stop: float
    """Coordinate of `high`."""
    log: bool = False
    """Whether the axis is logarithmic."""

    def __call__(self, values: ArrayLike) -> Array:
        """Return the coordinates of `values`. Values outside the axis are moved to its nearer end."""
        given = np.asarray(values, np.float64)
        if self.log:
            given = np.log(np.maximum(given, self.low))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        along = np.clip((given - low) / (high - low), 0.0, 1.0)
        return self.start + along * (self.stop - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round numbers within the axis, about `most` of them."""
        return _decades(self.low, self.high, most) if self.log else _steps(self.low, self.high, most)


def linear(values: ArrayLike, start: float, stop: float, *, spare: float = 0.04) -> Axis:
    """Return an axis that contains all finite values, with a margin at both ends.

    `spare` is the margin as a share of the range of the values.
    """
    given = np.asarray(values, np.float64).ravel()
    given = given[np.isfinite(given)]
    low, high = (float(given.min()), float(given.max())) if given.size else (0.0, 1.0)
    room = spare * (high - low) or 0.5 * max(abs(low), 1e-6)
    return Axis(low - room, high + room, start, stop)


def logarithmic(values: ArrayLike, start: float, stop: float) -> Axis:
    """Return an axis of whole decades that contains all finite positive values, at most `MOST_DECADES` decades."""
    given = np.asarray(values, np.float64).ravel()
    given = given[np.isfinite(given) & (given > 0)]
    top = math.ceil(math.log10(given.max()) - 1e-9) if given.size else 0
    bottom = math.floor(math.log10(given.min()) + 1e-9) if given.size else -1
    bottom = min(max(bottom, top - MOST_DECADES), top - 1)
    return Axis(10.0**bottom, 10.0**top, start, stop, log=True)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart so that they do not overlap.

    `places` are their coordinates in ascending order. The new coordinates lie between `low` and `high`, at least `gap`
    apart, as near to the old ones as possible.
    """
    moved: list[float] = []
    for at in places:
        moved.append(max(at, moved[-1] + gap) if moved else max(at, low))
    edge = high
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], edge)
        edge = moved[index] - gap
    return moved


def _steps(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten that lie within the axis."""
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Divide instead of multiplying by a step below 1: 3 * 0.1 would be 0.30000000000000004, not 0.3.
    return [index / round(1 / step) if step < 1 else index * step for index in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten within the axis, or also their multiples by 2 and 5 if it has less than two decades."""
    bottom, top = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if top - bottom < 2:
        fine = (step * 10.0**power for power in range(bottom - 1, top + 1) for step in (1, 2, 5))
        return [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    stride = math.ceil((top - bottom) / most)
    return [10.0**power for power in range(bottom, top + 1, stride)]
