"""From figures to places in a drawing, linear or logarithmic, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

MOST_DECADES = 8
"""What lies further below the largest value is drawn at the lower end of a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    start: float
    """Place of `low`, in units of the drawing."""
    stop: float
    log: bool = False

    def __call__(self, values: ArrayLike) -> Array:
        """Places of values; what lies outside is put on the nearer end."""
        given = np.asarray(values, np.float64)
        if self.log:
            given = np.log(np.maximum(given, self.low))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        along = np.clip((given - low) / (high - low), 0.0, 1.0)
        return self.start + along * (self.stop - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the axis, not many more than `most`."""
        return _decades(self.low, self.high, most) if self.log else _steps(self.low, self.high, most)


def linear(values: ArrayLike, start: float, stop: float, *, spare: float = 0.04) -> Axis:
    """An axis that holds all finite values, and a little more at both ends."""
    given = np.asarray(values, np.float64).ravel()
    given = given[np.isfinite(given)]
    low, high = (float(given.min()), float(given.max())) if given.size else (0.0, 1.0)
    room = spare * (high - low) or 0.5 * max(abs(low), 1e-6)
    return Axis(low - room, high + room, start, stop)


def logarithmic(values: ArrayLike, start: float, stop: float) -> Axis:
    """An axis of whole decades that holds all finite positive values, down to `MOST_DECADES` below the largest."""
    given = np.asarray(values, np.float64).ravel()
    given = given[np.isfinite(given) & (given > 0)]
    top = math.ceil(math.log10(given.max()) - 1e-9) if given.size else 0
    bottom = math.floor(math.log10(given.min()) + 1e-9) if given.size else -1
    bottom = min(max(bottom, top - MOST_DECADES), top - 1)
    return Axis(10.0**bottom, 10.0**top, start, stop, log=True)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places of labels, in ascending order, moved as little as `gap` between them asks for, from low to high."""
    moved: list[float] = []
    for at in places:
        moved.append(max(at, moved[-1] + gap) if moved else max(at, low))
    edge = high
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], edge)
        edge = moved[index] - gap
    return moved


def _steps(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Divided where the step is a fraction, so that 3 steps of 0.1 are 0.3 and not 0.30000000000000004.
    return [index / round(1 / step) if step < 1 else index * step for index in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    bottom, top = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if top - bottom < 2:
        fine = (step * 10.0**power for power in range(bottom - 1, top + 1) for step in (1, 2, 5))
        return [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    stride = math.ceil((top - bottom) / most)
    return [10.0**power for power in range(bottom, top + 1, stride)]
