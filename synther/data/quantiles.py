"""`Curve`: an increasing, piecewise linear map from the values of a column to a standard normal distribution.

`Lines` evaluates many such maps at once on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.errors import FormatError
from synther.schema import checked, finite

Matrix = NDArray[np.float64]

KNOTS = 1000
"""Maximum number of knots of a curve."""
_SMALLEST = 1e-280  # knots this close to 0 are set to 0, because slopes between them would overflow
_MOST_CELLS = 1 << 16  # maximum size of a lookup table, so that the parts that are often used stay in cache
_MOST_KNOTS_IN_A_CELL = 4  # each knot in a cell costs one comparison


@dataclass(frozen=True)
class Curve:
    """A map that is linear between knots and beyond them. `values` and `scores` of the knots are strictly increasing.

    The knots are equally spaced in normal scores rather than in probability, so that the tails are followed as far as
    the sample reaches.
    """

    values: tuple[float, ...]
    scores: tuple[float, ...]

    @classmethod
    def fit(cls, sample: Matrix, low: float, high: float) -> Curve:
        """Fit on a sample (N,) of a column. `low` and `high` are the lowest and highest value of the column, which must
        differ."""
        scores, places = _scores(len(sample))
        values = np.interp(places, np.arange(len(sample)), np.sort(sample))
        values[0], values[-1] = low, high
        values[np.abs(values) < _SMALLEST] = 0.0
        values, place = np.unique(values, return_inverse=True)
        weight = np.exp(-np.square(scores) / 2)  # proportional to the number of rows near a knot
        merged = np.bincount(place, weight * scores) / np.bincount(place, weight)  # knots of equal value are averaged
        return cls(tuple(values.tolist()), tuple(merged.tolist()))

    def halfway(self) -> Curve:
        """Return the mean of this curve and the identity. No slope of it is below one half."""
        pairs = zip(self.values, self.scores, strict=True)
        return Curve(self.values, tuple((value + score) / 2 for value, score in pairs))

    @cached_property
    def _knots(self) -> tuple[Matrix, Matrix]:
        return np.array(self.values), np.array(self.scores)

    @cached_property
    def outer(self) -> tuple[float, float]:
        """Slopes below the first and above the last knot: the mean slopes over the outer 1 % of the knots, because a
        single segment may be very short."""
        values, scores = self._knots
        reach = max(1, len(values) // 100)
        below = (scores[reach] - scores[0]) / (values[reach] - values[0])
        above = (scores[-1] - scores[-1 - reach]) / (values[-1] - values[-1 - reach])
        return float(below), float(above)

    @property
    def to_scores(self) -> Line:
        """The map from values to scores."""
        return Line(*self._knots, *self.outer)

    @property
    def to_values(self) -> Line:
        """The map from scores to values."""
        below, above = self.outer
        return Line(*self._knots[::-1], 1 / below, 1 / above)

    def log_slope(self, column: Matrix) -> Matrix:
        """Return log(d score / d value) at each value of a column. At a knot, it is the slope of the segment above
        it."""
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
                raise FormatError(
                    f"{name} of a curve: expected increasing numbers, at least two, as many values as scores"
                )
        return curve


@lru_cache(maxsize=16)  # it is slow, and has the same argument for all columns of a matrix
def _scores(count: int) -> tuple[Matrix, Matrix]:
    """Return the normal scores of the knots for a sample of `count` values, and the (fractional) positions of the knots
    in the sorted sample."""
    normal = NormalDist()
    reach = -normal.inv_cdf(0.5 / max(count, 2))
    scores = np.linspace(-reach, reach, min(KNOTS, max(count, 3)))
    # Hazen's plotting positions put the lowest of N values at probability 0.5 / N, and so at the first score.
    places = count * np.array([normal.cdf(score) for score in scores]) - 0.5
    scores.flags.writeable = places.flags.writeable = False
    return scores, places


class Lines:
    """Evaluates several piecewise linear maps on a device, one for each column.

    The slowest part is finding the knots around a number. So the range of the knots is divided into equal cells with at
    most a few knots each. A table gives the number of knots before each cell, and one comparison for each knot in the
    cell gives the rest. The cell of a number never falls when the number rises, so rounding does no harm. Lines that
    would need too many cells use a binary search instead.
    """

    def __init__(self, lines: Sequence[Line], device: torch.device) -> None:
        sizes = np.array([len(line.at) + 1 for line in lines])  # number of pieces of each line
        first = np.cumsum(sizes) - sizes  # number of the first piece of each line
        self._origin, self._start, self._slope = (
            torch.from_numpy(np.concatenate(parts)).to(device)
            for parts in zip(*(line.pieces() for line in lines), strict=True)
        )
        self._next = torch.from_numpy(np.concatenate([np.append(line.at, np.nan) for line in lines])).to(device)
        tables = [line.table() for line in lines]
        tabled = [place for place, table in enumerate(tables) if len(table)]
        searched = [place for place, table in enumerate(tables) if not len(table)]
        self._ways: list[tuple[Rows, Callable[[Tensor], Tensor]]] = []
        if tabled:
            self._ways.append((row_index(tabled, device), self._looked_up))
            counts = np.array([len(tables[place]) for place in tabled])
            before = np.concatenate([tables[place] + first[place] for place in tabled])
            self._most_in_a_cell = max(lines[place].most_in_a_cell for place in tabled)
            self._before = torch.from_numpy(before).to(device)
            self._first_cell = _column(np.cumsum(counts) - counts, device)
            self._last = _column(counts - 1.0, device)
            self._zero = torch.zeros((), dtype=torch.float64, device=device)
            self._low, self._cells = (
                _column(np.array([getattr(lines[place], name) for place in tabled]), device)
                for name in ("low", "cells_per_unit")
            )
        if searched:
            self._ways.append((row_index(searched, device), self._searched))
            widest = int(sizes[searched].max())
            padded = [np.append(lines[place].at, np.full(widest - len(lines[place].at), np.inf)) for place in searched]
            self._at = torch.from_numpy(np.stack(padded)).to(device)
            self._first, self._most = (_column(each[searched], device) for each in (first, sizes - 1))

    def follow(self, x: Tensor) -> Tensor:
        """Return the values of the C lines at `x` (C, N), which has one row of numbers for each line."""
        return self.followed(x)[0]

    def followed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values and the slopes of the C lines at `x`, both (C, N)."""
        if len(self._ways) == 1:
            passed = self._ways[0][1](x)
        else:
            passed = torch.empty(x.shape, dtype=torch.int64, device=x.device)
            for place, find in self._ways:
                passed[place] = find(x[place])
        flat = passed.view(-1)
        origin, start, slope = (
            each.index_select(0, flat).view(x.shape) for each in (self._origin, self._start, self._slope)
        )
        return (x - origin).mul_(slope).add_(start), slope

    def _looked_up(self, x: Tensor) -> Tensor:
        """Return the number of the piece that each number of `x` lies on, by the lookup tables."""
        cells = (x - self._low).mul_(self._cells)
        # NaN goes to the first cell: an index outside the table would stop the process on a GPU.
        cells = torch.minimum(torch.fmax(cells, self._zero), self._last)
        place = cells.to(torch.int64).add_(self._first_cell).view(-1)
        passed, flat = self._before.index_select(0, place), x.reshape(-1)
        for _ in range(self._most_in_a_cell):
            passed.add_(flat >= self._next.index_select(0, passed))
        return passed.view(x.shape)

    def _searched(self, x: Tensor) -> Tensor:
        """Return the number of the piece that each number of `x` lies on, by binary search."""
        return torch.searchsorted(self._at, x.contiguous(), right=True).minimum(self._most).add_(self._first)


@dataclass(frozen=True, eq=False)
class Line:
    """A piecewise linear map: knots (`at`, `to`), and the slopes `below` the first and `above` the last knot."""

    at: Matrix
    to: Matrix
    below: float
    above: float

    @property
    def low(self) -> float:
        return float(self.at[0])

    @cached_property
    def cells_per_unit(self) -> float:
        """Number of cells per unit of `at`. Cells are halved until each holds at most `_MOST_KNOTS_IN_A_CELL` knots. It
        is 0 if this takes more than `_MOST_CELLS`."""
        cells = 2 * len(self.at)
        while cells <= _MOST_CELLS:
            per_unit = float(cells / (self.at[-1] - self.at[0]))
            if self._inside(per_unit).max() <= _MOST_KNOTS_IN_A_CELL:
                return per_unit
            cells *= 2
        return 0.0

    @property
    def most_in_a_cell(self) -> int:
        """The largest number of knots in a cell."""
        return int(self._inside(self.cells_per_unit).max())

    def _inside(self, per_unit: float) -> NDArray[np.int64]:
        """Return the number of knots in each cell, given the number of cells per unit."""
        cells = ((self.at - self.at[0]) * per_unit).astype(np.int64)
        return np.bincount(cells, minlength=int(cells[-1]) + 2)

    def pieces(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return origin, value at the origin, and slope of each piece. Piece k holds for numbers with k knots at or
        below them."""
        slope = np.concatenate([[self.below], np.diff(self.to) / np.diff(self.at), [self.above]])
        return np.append(self.at[0], self.at), np.append(self.to[0], self.to), slope

    def table(self) -> NDArray[np.int64]:
        """Return the number of knots before each cell. It is empty if there are no cells."""
        if not self.cells_per_unit:
            return np.empty(0, np.int64)
        inside = self._inside(self.cells_per_unit)
        return np.cumsum(inside) - inside


Rows = slice | Tensor
"""Index that selects rows of a tensor."""


def row_index(places: Sequence[int], device: torch.device) -> Rows:
    """Return an index for these rows of a tensor. It is a slice, which avoids a copy, if they are neighbours in
    order."""
    first = places[0] if places else 0
    if list(places) == list(range(first, first + len(places))):
        return slice(first, first + len(places))
    return torch.tensor(places, device=device)


def _column(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values as a column (C, 1) on a device."""
    return torch.from_numpy(values).to(device)[:, None]
