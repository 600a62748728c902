"""Model columns that a sensor has rounded, such as a thermometer that shows half degrees or a converter of 256 levels.

The next reading is a smooth number that was rounded. If the noise is about as large as a rounding step, a linear
regression predicts the smooth number better than any whole multiples of other columns (lattices.py). A network that
generated the rounded numbers would have to hit narrow peaks, and would often hit the wrong one. So every row gets a
smooth number that may have been rounded to its own. This number is drawn from the distribution of the residuals about
the regression line, restricted to the rounding cell. Generated numbers are rounded again. Uniform noise in place of
this draw would count the rounding error twice.

Regression and residual distribution are found by iteration, as in clipping.py: numbers are drawn inside their cells
from the residual distribution, and the next regression is fitted to these numbers. Read `find_line`.

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

_TURNS = 12  # number of iterations of regression and draw
_RANKS = 257  # number of quantiles that describe the residual distribution
_DRAWING = 19  # seed of the draws
_NARROW = 0.02**2  # directions of the inputs (std 1) with less variance are ignored: generated inputs err by as much
_TELLS = 0.1  # bits by which the regression must beat the frequencies alone, and by which a table may beat it
_PARTS, _ROWS_IN_A_CELL = 32, 20  # of that table: most bins of the predictions, and mean number of rows in each cell
_FEW = 32  # if all actions have at most this many values, categories may be predicted from tables, and are kept
_LEAST = 0.01  # slopes below this, in stds of the residual, are set to 0: half of the rows measure them no better
_INSIDE = 1e-3  # distance of numbers to the ends of their cell, in steps, so that float32 still rounds them back

Spread = Callable[[Matrix, NDArray[np.bool_]], tuple[float, Matrix]]
"""Function that returns the mean of some numbers (N,) and the std of the number in each row (N,). Both are estimated
from the rows marked in its second argument (N,)."""


def same_spread(numbers: Matrix, known: NDArray[np.bool_]) -> tuple[float, Matrix]:
    """Return mean and std of `numbers`, assuming the same std in every row."""
    return float(numbers[known].mean()), np.full(len(numbers), max(float(numbers[known].std()), 1e-12))


class Cells(NamedTuple):
    """The rounding cell of each row: the range (N,), (N,) that its number was in before it was rounded."""

    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, values: Matrix, unit: float, lowest: NDArray[np.bool_], highest: NDArray[np.bool_]) -> Cells:
        """Return the cells of `values` (N,) on a lattice with steps of `unit`.

        `lowest` and `highest` (N,) mark the rows at the ends of the sensor's range. Their cells are infinite on that
        side, because the sensor shows no number beyond.
        """
        reach = (0.5 - _INSIDE) * unit
        return cls(np.where(lowest, -math.inf, values - reach), np.where(highest, math.inf, values + reach))

    @property
    def middle(self) -> Matrix:
        """The middle of each cell. In cells with one infinite end it is the finite end. (N,)"""
        low, high = (
            np.where(np.isinf(end), other, end) for end, other in ((self.low, self.high), (self.high, self.low))
        )
        return np.asarray((low + high) / 2)

    def standardised(self, level: Matrix, width: Matrix | float = 1.0) -> Cells:
        """Return the cells of (number - level) / width."""
        return Cells((self.low - level) / width, (self.high - level) / width)

    def drawn(self, ranks: Matrix, draw: np.random.Generator) -> Matrix:
        """Draw one number inside each cell from a distribution that is truncated to the cell. (N,)

        The quantiles of the distribution, at equally spaced levels from 0 to 1, are `ranks`.
        """
        first, last = _below(self.low, ranks), _below(self.high, ranks)
        found = np.interp(first + (last - first) * draw.random(len(first)), np.linspace(0, 1, len(ranks)), ranks)
        return np.asarray(np.clip(found, self.low, self.high))

    def chances(self, ranks: Matrix) -> Matrix:
        """Return the probability of each cell under the distribution with the quantiles `ranks`. (N,)"""
        return _below(self.high, ranks) - _below(self.low, ranks)


def _below(values: Matrix, ranks: Matrix) -> Matrix:
    """Return the cumulative distribution function at `values`, for a distribution with the quantiles `ranks`."""
    return np.asarray(np.interp(values, ranks, np.linspace(0, 1, len(ranks)), left=0.0, right=1.0))


class Line(NamedTuple):
    """A linear regression of numbers before they were rounded."""

    slopes: Matrix
    """Slope of each given column. (G,)"""
    off: Matrix
    """Residual of each row, for the number before rounding that was drawn for it. (N,)"""
    ranks: Matrix
    """Quantiles of the residuals minus their mean, divided by their std, at equally spaced levels from 0 to 1."""
    bits: float
    """Mean number of bits about the rounded number that the regression leaves open."""
    is_rounded_noise: bool
    """Whether the numbers are prediction plus noise, rounded. Then the regression leaves fewer bits open than the
    frequencies of the numbers. And a table of the numbers by prediction leaves hardly fewer bits open than the
    regression. The table would be far better for a switch, which only looks like rounded noise."""


class Given:
    """Given columns (N, G) of std 1, the inputs of regressions. What all regressions share is computed once."""

    def __init__(self, x: Matrix) -> None:
        self.x = x
        self.learned = np.arange(len(x)) % 2 == 0
        """Rows that regressions are fitted to. The other rows judge the fit. (N,)"""
        self.has_enough_rows = 0 < ROWS_PER_WEIGHT * x.shape[1] <= np.count_nonzero(self.learned)

    @cached_property
    def _directions(self) -> Directions:
        return Directions(self.x[self.learned], narrow=_NARROW)

    def slopes(self, y: Matrix) -> Matrix:
        """Return the slopes of a regression of `y` (N,) on the given columns. (G,)"""
        return self._directions.slopes(y[self.learned, None])[:, 0]

    def line(self, slopes: Matrix) -> Matrix:
        """Return the predictions with these slopes, without an intercept. (N,)"""
        return product(self.x, slopes[:, None])[:, 0]


def find_line(cells: Cells, numbers: NDArray[np.int64], given: Given, spread: Spread = same_spread) -> Line | None:
    """Fit a regression on the given columns to numbers before they were rounded.

    `cells` are the rounding cells of the rows, and `numbers` (N,) count the steps of the lattice from 0. Returns None
    if there are too few rows, or if the numbers span fewer than two steps.
    """
    full, known = cells.middle, given.learned
    if numbers.max() < 2 or not given.has_enough_rows:
        return None
    draw, least = np.random.default_rng(_DRAWING), 0.0
    for _ in range(_TURNS):
        slopes = given.slopes(full)
        slopes[np.abs(slopes) < least] = 0.0
        line = given.line(slopes)
        off = full - line
        level, width = spread(off, known)
        ranks = np.quantile(((off - level) / width)[known], np.linspace(0, 1, _RANKS))
        inner, least = cells.standardised(line + level, width), _LEAST * float(width.mean())
        full = line + level + width * inner.drawn(ranks, draw)
    bits = float(-np.log2(np.maximum(inner.chances(ranks)[~known], 1 / len(full))).mean())
    parts = int(np.clip(len(full) // (_ROWS_IN_A_CELL * len(np.unique(numbers))), 1, _PARTS))
    part = np.searchsorted(np.quantile(line, np.linspace(0, 1, parts + 1)[1:-1]), line)
    table = entropy((part * (numbers.max() + 1) + numbers)[~known]) - entropy(part[~known])
    return Line(slopes, off, ranks, bits, bits <= min(entropy(numbers[~known]) - _TELLS, table + _TELLS))


def entropy(values: NDArray[np.int64]) -> float:
    """Estimate the entropy of `values`, in bits, with the bias correction of Miller and Madow (1955)."""
    _, count = np.unique(values, return_counts=True)
    share = count / len(values)
    return float(-(share * np.log2(share)).sum() + (len(count) - 1) / (2 * math.log(2) * len(values)))


def find_measured(found: tuple[Kind, ...], steps: Steps) -> tuple[Kind, ...]:
    """Return the kinds of observations, in which categories that are rounded measurements became `Integer`.

    Example: a speed in whole units. `found` are the kinds so far, `steps` a sample of steps. If all actions have few
    values, nothing changes, because tables can then predict the categories.
    """
    columns = np.concatenate([steps.before, steps.action], axis=1)
    units = Units.of(columns)
    if units is None or all(len(np.unique(column)) <= _FEW for column in steps.action.T):
        return found
    given, better = Given((columns - units.mean) / units.std), list[Kind]()
    for start, kind in zip(first_columns(found), found, strict=True):
        sources = range(start, start + kind.source_width)
        if isinstance(kind, Codebook) and all(_is_measured(steps, column, given) for column in sources):
            better += [Integer(min(values), max(values)) for values in zip(*kind.rows, strict=True)]
        else:
            better.append(kind)
    return tuple(better)


def _is_measured(steps: Steps, column: int, given: Given) -> bool:
    """Return whether the next value of a column of whole numbers is a regression on the given columns plus noise,
    rounded."""
    before, after = steps.before[:, column], steps.after[:, column]
    change = after - before
    cells = Cells.of(change, 1.0, after == after.min(), after == after.max())
    line = find_line(cells, np.rint(change - change.min()).astype(np.int64), given)
    return line is not None and line.is_rounded_noise
