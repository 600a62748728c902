"""An increasing curve from a column's values to a standard normal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

KNOTS = 1000
_SMALLEST = 1e-280  # the slope between knots closer than about this would overflow


@dataclass(frozen=True)
class Curve:
    """Straight between knots, both coordinates strictly increasing; beyond them it goes on straight.

    The knots lie evenly in normal scores rather than in probability, so that tails are followed as far as the sample
    reaches.
    """

    values: tuple[float, ...]
    scores: tuple[float, ...]

    @classmethod
    def fit(cls, sample: Matrix, low: float, high: float) -> Curve:
        """Of a sample (N,) from a column between `low` and `high`, which must differ."""
        normal, count = NormalDist(), len(sample)
        reach = -normal.inv_cdf(0.5 / max(count, 2))
        scores = np.linspace(-reach, reach, min(KNOTS, max(count, 3)))
        # Hazen's plotting positions put the lowest of N values at probability 0.5 / N, and so at the first score.
        places = count * np.array([normal.cdf(score) for score in scores]) - 0.5
        values = np.interp(places, np.arange(count), np.sort(sample))
        values[0], values[-1] = low, high
        values[np.abs(values) < _SMALLEST] = 0.0
        values, place = np.unique(values, return_inverse=True)
        merged = np.bincount(place, scores) / np.bincount(
            place
        )  # a value that many rows share sits at its middle score
        return cls(tuple(values.tolist()), tuple(merged.tolist()))

    def halfway(self) -> Curve:
        """The curve in the middle between this one and the identity: no slope of it is below one half."""
        pairs = zip(self.values, self.scores, strict=True)
        return Curve(self.values, tuple((value + score) / 2 for value, score in pairs))

    @cached_property
    def _knots(self) -> tuple[Matrix, Matrix]:
        return np.array(self.values), np.array(self.scores)

    @cached_property
    def _outer(self) -> tuple[float, float]:
        """Slopes below the first and above the last knot: of the outer hundredth, as one segment may be very short."""
        values, scores = self._knots
        reach = max(1, len(values) // 100)
        below = (scores[reach] - scores[0]) / (values[reach] - values[0])
        above = (scores[-1] - scores[-1 - reach]) / (values[-1] - values[-1 - reach])
        return float(below), float(above)

    def forward(self, column: Matrix) -> Matrix:
        values, scores = self._knots
        below, above = self._outer
        return _follow(column, values, scores, below, above)

    def backward(self, column: Matrix) -> Matrix:
        values, scores = self._knots
        below, above = self._outer
        return _follow(column, scores, values, 1 / below, 1 / above)

    def log_slope(self, column: Matrix) -> Matrix:
        """log d score / d value at each value; at a knot, that of the segment above it."""
        values, scores = self._knots
        below, above = self._outer
        slopes = np.concatenate([[below], np.diff(scores) / np.diff(values), [above]])
        inside = np.searchsorted(values, column, side="right")
        inside = np.where(column == values[-1], len(values) - 1, inside)
        return np.asarray(np.log(slopes)[inside], np.float64)

    def to_json(self) -> dict[str, Any]:
        return {"values": list(self.values), "scores": list(self.scores)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Curve:
        return cls(tuple(entry["values"]), tuple(entry["scores"]))


def _follow(x: Matrix, at: Matrix, to: Matrix, below: float, above: float) -> Matrix:
    y = np.asarray(np.interp(x, at, to), np.float64)
    low, high = x < at[0], x > at[-1]
    y[low] = to[0] + (x[low] - at[0]) * below
    y[high] = to[-1] + (x[high] - at[-1]) * above
    return y
