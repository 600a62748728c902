"""Numbers that a sensor rounds: a thermometer that shows half degrees, a converter of 256 levels.

Its steps are about as large as the noise. What it shows next is a smooth number, rounded, and a line tells much of that
which no whole multiples tell. A network would have to hit narrow peaks, and often hits the wrong one. So every row gets
a number that may have been rounded to its own, as far off the line as those of other rows are; it is rounded again when
rows come back. To add even noise instead would count the rounding twice.

How far numbers are off the line is found by turns, as in clipping.py: numbers are drawn inside their steps from what is
off the line, and the next line goes through these.

NOTE[paper]: the reference rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.data.categories import Codebook
from synther.data.kind import Kind, Matrix, first_columns
from synther.data.lines import ROWS_PER_WEIGHT, Directions, Units, product
from synther.data.values import Integer

if TYPE_CHECKING:
    from synther.data.inference import Steps

_TURNS, _RANKS = 12, 257  # of numbers that may have been rounded
_DRAWING = 19  # of random numbers
_NARROW = 0.02**2  # variance of directions that explain nothing, of columns of std 1: generated ones are off by as much
_TELLS = 0.1  # bits that a line has to tell more than nothing, and may tell less than a table
_PARTS, _ROWS_IN_A_CELL = 32, 20  # of a table: parts of the rows by what a line says, and rows for each of its numbers
_FEW = 32  # values of an action up to which tables may tell the outcomes
_LEAST = 0.01  # slope, of what spreads by 1 about the line, that is no chance: half of the rows have it right to this
_INSIDE = 1e-3  # of a step, by which numbers stay off its ends: rounding of float32 then leads back

Spread = Callable[[Matrix, NDArray[np.bool_]], tuple[float, Matrix]]
"""Mean of some numbers (N,), and how far each spreads (N,), as the rows tell that are known (N,)."""


def alike(numbers: Matrix, known: NDArray[np.bool_]) -> tuple[float, Matrix]:
    """The spread of numbers that spread alike in all rows."""
    return float(numbers[known].mean()), np.full(len(numbers), max(float(numbers[known].std()), 1e-12))


class Cells(NamedTuple):
    """Between which numbers that of each row was before it was rounded: (N,) each."""

    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, values: Matrix, unit: float, lowest: NDArray[np.bool_], highest: NDArray[np.bool_]) -> Cells:
        """Of `values` on a lattice of this `unit`. Beyond the lowest and the highest one, a sensor shows no others."""
        reach = (0.5 - _INSIDE) * unit
        return cls(np.where(lowest, -math.inf, values - reach), np.where(highest, math.inf, values + reach))

    @property
    def middle(self) -> Matrix:
        """Of cells with one end, that end."""
        low, high = (
            np.where(np.isinf(end), other, end) for end, other in ((self.low, self.high), (self.high, self.low))
        )
        return np.asarray((low + high) / 2)

    def less(self, level: Matrix, width: Matrix | float = 1.0) -> Cells:
        """The same of numbers less a level and divided by a width."""
        return Cells((self.low - level) / width, (self.high - level) / width)

    def drawn(self, ranks: Matrix, draw: np.random.Generator) -> Matrix:
        """Numbers inside, distributed like those that are `ranks` at ranks from 0 to 1, equally spaced."""
        first, last = _below(self.low, ranks), _below(self.high, ranks)
        found = np.interp(first + (last - first) * draw.random(len(first)), np.linspace(0, 1, len(ranks)), ranks)
        return np.asarray(np.clip(found, self.low, self.high))

    def chances(self, ranks: Matrix) -> Matrix:
        """How likely such a number is inside each. (N,)"""
        return _below(self.high, ranks) - _below(self.low, ranks)


def _below(values: Matrix, ranks: Matrix) -> Matrix:
    return np.asarray(np.interp(values, ranks, np.linspace(0, 1, len(ranks)), left=0.0, right=1.0))


class Line(NamedTuple):
    """What numbers follow before they are rounded."""

    slopes: Matrix
    """Of each given column. (G,)"""
    off: Matrix
    """How far each row's number may have been off it. (N,)"""
    ranks: Matrix
    """The same without its mean and divided by its spread, at ranks from 0 to 1."""
    bits: float
    """How many a row leaves open about its rounded number."""
    is_told: bool
    """Whether numbers are noise about the line that was rounded. Then it tells more about a number than how often each
    comes, and hardly less than a table by what the line says: such a table would tell far more of a switch, whose steps
    only look like noise."""


class Given:
    """Columns (N, G) of std 1 that lines may be in. What all lines have in common is computed once."""

    def __init__(self, x: Matrix) -> None:
        self.x, self.learned = x, np.arange(len(x)) % 2 == 0
        """The columns, and the rows that lines are learned from: the others judge. (N,)"""
        self.are_enough = 0 < ROWS_PER_WEIGHT * x.shape[1] <= np.count_nonzero(self.learned)

    @cached_property
    def _directions(self) -> Directions:
        return Directions(self.x[self.learned], narrow=_NARROW)

    def slopes(self, y: Matrix) -> Matrix:
        """Those of a line for `y` (N,). (G,)"""
        return self._directions.slopes(y[self.learned, None])[:, 0]

    def line(self, slopes: Matrix) -> Matrix:
        return product(self.x, slopes[:, None])[:, 0]


def find_line(cells: Cells, numbers: NDArray[np.int64], given: Given, spread: Spread = alike) -> Line | None:
    """The line in given columns that numbers follow best before they are rounded; None where rows are too few. Their
    places on their lattice are `numbers` (N,), from 0 on."""
    full, known = cells.middle, given.learned
    if numbers.max() < 2 or not given.are_enough:
        return None
    draw, least = np.random.default_rng(_DRAWING), 0.0
    for _ in range(_TURNS):
        slopes = given.slopes(full)
        slopes[np.abs(slopes) < least] = 0.0
        line = given.line(slopes)
        off = full - line
        level, width = spread(off, known)
        ranks = np.quantile(((off - level) / width)[known], np.linspace(0, 1, _RANKS))
        inner, least = cells.less(line + level, width), _LEAST * float(width.mean())
        full = line + level + width * inner.drawn(ranks, draw)
    bits = float(-np.log2(np.maximum(inner.chances(ranks)[~known], 1 / len(full))).mean())
    parts = int(np.clip(len(full) // (_ROWS_IN_A_CELL * len(np.unique(numbers))), 1, _PARTS))
    part = np.searchsorted(np.quantile(line, np.linspace(0, 1, parts + 1)[1:-1]), line)
    table = entropy((part * (numbers.max() + 1) + numbers)[~known]) - entropy(part[~known])
    return Line(slopes, off, ranks, bits, bits <= min(entropy(numbers[~known]) - _TELLS, table + _TELLS))


def entropy(values: NDArray[np.int64]) -> float:
    """Of how often each value comes, in bits, as in many more rows than these (Miller and Madow 1955)."""
    _, count = np.unique(values, return_counts=True)
    share = count / len(values)
    return float(-(share * np.log2(share)).sum() + (len(count) - 1) / (2 * math.log(2) * len(values)))


def find_measured(found: tuple[Kind, ...], told: Steps) -> tuple[Kind, ...]:
    """The kinds `found` of observations, with categories that are rounded numbers as such: a speed in whole units. Only
    where actions are plain numbers. Where all is discrete, tables tell the outcomes."""
    columns = np.concatenate([told.before, told.action], axis=1)
    units = Units.of(columns)
    if units is None or all(len(np.unique(column)) <= _FEW for column in told.action.T):
        return found
    given, better = Given((columns - units.mean) / units.std), list[Kind]()
    for start, kind in zip(first_columns(found), found, strict=True):
        own = range(start, start + kind.source_width)
        if isinstance(kind, Codebook) and all(_is_measured(told, column, given) for column in own):
            better += [Integer(min(values), max(values)) for values in zip(*kind.rows, strict=True)]
        else:
            better.append(kind)
    return tuple(better)


def _is_measured(told: Steps, column: int, given: Given) -> bool:
    """Whether the next value of a column of whole numbers is noise about a line in the given columns, rounded."""
    before, after = told.before[:, column], told.after[:, column]
    change = after - before
    cells = Cells.of(change, 1.0, after == after.min(), after == after.max())
    line = find_line(cells, np.rint(change - change.min()).astype(np.int64), given)
    return line is not None and line.is_told
