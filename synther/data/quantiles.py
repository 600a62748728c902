"""An increasing curve from a column's values to a standard normal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import FormatError
from synther.schema import checked, finite

Matrix = NDArray[np.float64]

KNOTS = 1000
_SMALLEST = 1e-280  # the slope between knots closer than about this would overflow
_MOST_CELLS = 1 << 16  # of a line's table, of which what is often looked up should stay in cache


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
        scores, places = _scores(len(sample))
        values = np.interp(places, np.arange(len(sample)), np.sort(sample))
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
    def outer(self) -> tuple[float, float]:
        """Slopes below the first and above the last knot: of the outer hundredth, as one segment may be very short."""
        values, scores = self._knots
        reach = max(1, len(values) // 100)
        below = (scores[reach] - scores[0]) / (values[reach] - values[0])
        above = (scores[-1] - scores[-1 - reach]) / (values[-1] - values[-1 - reach])
        return float(below), float(above)

    @cached_property
    def _to_scores(self) -> _Line:
        values, scores = self._knots
        return _Line(values, scores, *self.outer)

    @cached_property
    def _to_values(self) -> _Line:
        values, scores = self._knots
        below, above = self.outer
        return _Line(scores, values, 1 / below, 1 / above)

    def forward(self, column: Matrix) -> Matrix:
        return self._to_scores.follow(column)

    def backward(self, column: Matrix) -> Matrix:
        return self._to_values.follow(column)

    def log_slope(self, column: Matrix) -> Matrix:
        """log d score / d value at each value; at a knot, that of the segment above it."""
        values, scores = self._knots
        below, above = self.outer
        slopes = np.concatenate([[below], np.diff(scores) / np.diff(values), [above]])
        inside = np.searchsorted(values, column, side="right")
        inside = np.where(column == values[-1], len(values) - 1, inside)
        return np.asarray(np.log(slopes)[inside], np.float64)

    def to_json(self) -> dict[str, Any]:
        return {"values": list(self.values), "scores": list(self.scores)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Curve:
        curve: Curve = checked(entry, cls, "a curve")
        for name in ("values", "scores"):
            knots = np.array(finite(getattr(curve, name), name))
            if len(knots) < 2 or len(knots) != len(curve.values) or (np.diff(knots) <= 0).any():
                raise FormatError(f"{name} of a curve: expected as many increasing numbers as the others, two or more")
        return curve


@lru_cache(maxsize=16)  # all columns of a matrix ask for the same, and it is slow
def _scores(count: int) -> tuple[Matrix, Matrix]:
    """The normal scores of the knots for `count` values, and their places among these in increasing order."""
    normal = NormalDist()
    reach = -normal.inv_cdf(0.5 / max(count, 2))
    scores = np.linspace(-reach, reach, min(KNOTS, max(count, 3)))
    # Hazen's plotting positions put the lowest of N values at probability 0.5 / N, and so at the first score.
    places = count * np.array([normal.cdf(score) for score in scores]) - 0.5
    scores.flags.writeable = places.flags.writeable = False
    return scores, places


class _Line:
    """A line that is straight between knots (`at`, `to`), and beyond them with the slopes `below` and `above`.

    To find out between which knots a number lies costs more than all else. So their range is cut into even cells of
    which none holds two knots: a table says how many knots come before a cell, and one comparison whether the number
    is beyond the knot in it. The cell of a number never falls as the number rises, so that rounding does no harm.
    Knots that would take too many cells are searched for.
    """

    def __init__(self, at: Matrix, to: Matrix, below: float, above: float) -> None:
        self._at, self._next = at, np.append(at, np.nan)  # which no number reaches
        # What holds where 0, 1, 2, ... knots are at or below a number.
        self._origin, self._start = np.append(at[0], at), np.append(to[0], to)
        self._slope = np.concatenate([[below], np.diff(to) / np.diff(at), [above]])
        self._cells_per_unit, self._before = 0.0, np.empty(0, np.intp)
        if (at[-1] - at[0]) * 2 < _MOST_CELLS * np.diff(at).min():
            self._cells_per_unit = 2 / np.diff(at).min()
            inside = np.bincount(self._cells(at), minlength=int(self._cells(at[-1:])[0]) + 2)
            self._before = np.cumsum(inside) - inside

    def follow(self, x: Matrix) -> Matrix:
        x = np.ascontiguousarray(x)
        if len(self._before):
            passed = self._before.take(self._cells(x), mode="clip")
            passed += x >= self._next.take(passed)
        else:
            passed = np.searchsorted(self._at, x, side="right")
        y: Matrix = x - self._origin.take(passed)
        y *= self._slope.take(passed)
        y += self._start.take(passed)
        return y

    def _cells(self, x: Matrix) -> NDArray[np.intp]:
        """The cell of each number; what is below the first is in it, and what is no number somewhere."""
        cells: Matrix = x - self._at[0]
        cells *= self._cells_per_unit
        np.fmax(cells, 0.0, out=cells)
        np.fmin(cells, _MOST_CELLS, out=cells)
        return cells.astype(np.intp)
