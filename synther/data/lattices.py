"""Subtract whole multiples of other columns from outcomes on a lattice (whole numbers, or steps of 0.1).

Examples: a stock grows by what was ordered, a score counts events. If whole multiples of other columns on a lattice are
subtracted from such an outcome, the residual is on a lattice too. Often it has few values, or only multiples of 3.
Generated residuals are rounded to these values, so generated rows keep the arithmetic of the real ones. A regression
with arbitrary weights would lose the lattice. If the residual is a number that a sensor has rounded, a linear
regression explains a further part of it (rounding.py).

Read `Grid` (which columns, and the search for multiples), then `Step` (one outcome, both directions).

NOTE[paper]: the reference rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.following import class_rows
from synther.data.kinds import Binary, Categorical, Codebook, Integer, Levels, OneHot, Real
from synther.data.lines import ROWS_PER_WEIGHT, least_squares, product
from synther.data.rounding import Cells, Given, entropy, find_line
from synther.data.values import OFF, grain_of

if TYPE_CHECKING:
    from synther.data.layout import Layout

Matrix = NDArray[np.float64]

SMALLEST = 1e-4
"""Smallest std that is divided by when residuals are scaled to std 1. A smaller residual is only rounding error."""
_MOST_INPUTS = 1024  # maximum number of inputs among which multiples are searched
_TRIED = 1 << 14  # number of rows in which multiples are searched
_TRIMMED = 4  # number of rounds of a regression without outliers
_USUAL = 0.9  # share of the rows that are not outliers in each round
_BETTER = 0.9  # a choice of multiples is used only if its residual has at most this share of the variance before it
_HEAPED, _MANY = 3.0, 0.005  # a heap has 3 times as many rows as either of the next two values, and 0.5 % of all rows
_LONG, _LONGEST = 8, 1 << 20  # minimum and maximum number of lattice steps in the range of an outcome with heaps
_TURNS = 12  # number of iterations in which numbers beyond the ends are drawn
_RANKS = 257  # number of quantiles that describe the residual distribution
_DRAWING = 13  # seed of the draws
_FEWER = 0.1  # bits that the last value alone, with a regression, must save compared with multiples of more columns
_SETTLED = 0.2  # a residual with a smaller std in some category, in lattice steps, is no rounded noise
_MOST_LINED = 1 << 15  # maximum number of rows in which the regression of rounded numbers is fitted
_UNEVEN = 1.3  # a spread depends on a category if the std in one of its values is this many times that in another
_ENOUGH = 200  # minimum number of rows with each value of that category
_SURE = 6.0  # a residual that never varies in a category gets a std of one lattice step divided by this


class Codes(NamedTuple):
    """One-hot columns of a category: 1 in the column of its value, and -1 in the others."""

    columns: Sequence[int]
    values: Sequence[float]
    """Number that each column stands for. Empty if the values of the category are no numbers."""


class _Input(NamedTuple):
    """A weighted sum of columns that may be an input of an outcome."""

    numbers: Matrix
    grain: float
    """Step of the lattice that the sum is on."""
    parts: dict[int, float]
    """Weight of each column in the sum."""


_Code = tuple[Matrix, int, float]
"""One-hot column: its values of -1 and 1 minus their mean (N,), its place, and the std that it was divided by."""


@dataclass(frozen=True)
class Grid:
    """The columns of the matrix that are on a lattice."""

    grains: Mapping[int, float]
    """Lattice step of each column that holds numbers on a lattice."""
    codes: Sequence[Codes] = ()
    """Categories of observation and action."""
    steps: Sequence[tuple[int, int | None]] = ()
    """Outcomes on a lattice, each with the column of the same quantity in the observation, or None. Outcomes earlier in
    the list may be inputs of later ones."""

    @classmethod
    def of(cls, layout: Layout) -> Grid:
        """Return the lattice columns of a layout. Outcomes are next observations, and then the reward."""
        grains: dict[int, float] = {}
        codes, steps = list[Codes](), list[tuple[int, int | None]]()
        for place in layout.places:
            kind, columns = place.kind, range(place.matrix.start, place.matrix.stop)
            if isinstance(kind, (Levels, Integer)):
                grain = grain_of(kind.values) if isinstance(kind, Levels) else 1.0
                grains |= {columns.start: grain} if grain else {}
                if place.field == "next_observation":
                    steps.append((columns.start, layout.twins[columns.start]))
            elif place.field not in ("observation", "action") or isinstance(kind, Real):
                continue
            elif isinstance(kind, Binary):
                grains[columns.start] = 1.0
            elif isinstance(kind, (Categorical, OneHot, Codebook)):
                one_for_each = isinstance(kind, (Categorical, Codebook)) and len(columns) == kind.class_count
                values = [row[0] for row in class_rows(kind)] if one_for_each and kind.source_width == 1 else []
                codes.append(Codes(columns, values))
        (reward,) = layout.columns_of("reward")[:1] or (None,)
        if reward in grains:
            steps.append((reward, None))
        return cls(grains, codes, steps)

    def among(self, columns: Collection[int]) -> Grid:
        """Return the same grid with only those outcomes that are in `columns`."""
        return replace(self, steps=[step for step in self.steps if step[0] in columns])

    def fit(self, drawn: Matrix, place: Mapping[int, int], scale: Matrix, given: Sequence[int]) -> list[Step]:
        """Learn from scaled rows `drawn` what to subtract from each outcome.

        Each column of the matrix was divided by its `scale`, and is now column `place[column]` of `drawn`. The columns
        of the returned steps are those of `drawn`.
        """
        raw = {column: drawn[:, at] * scale[column] for column, at in place.items()} if self.steps else {}
        numbers = [self._number(column, raw) for column in given if column in raw and column in self.grains]
        singles = []
        for group in self.codes:
            known = [column for column in group.columns if column in raw]
            if known and len(known) == len(group.values):
                parts = {column: value / 2 for column, value in zip(group.columns, group.values, strict=True)}
                grain = grain_of(sorted(group.values))
                numbers += [_Input(_sum(raw, parts), grain, parts)] if grain else []
            usual = max(known, key=lambda column: float(raw[column].mean()), default=None)  # most frequent: no input
            singles += [_Input(raw[column], 2.0, {column: 1.0}) for column in known if column != usual]
        found = []
        present = {*given}.intersection(raw)
        groups = [group.columns for group in self.codes if present.issuperset(group.columns)]
        lines = _Lines(drawn, [place[column] for column in given if column in place])
        for column, twin in self.steps:
            if column in raw and (twin is None or twin in raw):
                weights = self._weights(column, twin, (numbers, singles), raw)
                if weights:
                    grain = self.grains.get(column, 0.0)
                    make = partial(_step, column, raw=raw, grain=grain, place=place, scale=scale, groups=groups)
                    step, bits = make(weights, lines=lines)
                    # A sensor that rounds: the last value alone, with a regression, may leave fewer bits open.
                    if twin is not None and len(weights) > 1:
                        other, fewer = make({twin: 1.0}, lines=lines)
                        step = other if other.slopes and fewer < bits - _FEWER else step
                    found.append(step)
                    numbers += [self._number(column, raw)] if column in self.grains else []
        return found

    def _number(self, column: int, raw: Mapping[int, Matrix]) -> _Input:
        """Return a single column as an input."""
        return _Input(raw[column], self.grains[column], {column: 1.0})

    def _weights(
        self, column: int, twin: int | None, tried: Sequence[Sequence[_Input]], raw: Mapping[int, Matrix]
    ) -> dict[int, float]:
        """Return the multiple of each column to subtract from an outcome, so that the residual is on a lattice.

        `twin` is the same quantity in the observation; its multiple is 1 by default. `tried` are groups of inputs:
        numbers, and then single one-hot columns. Returns no weights if there is no twin and no multiples explain much.
        """
        weights: dict[int, float] = {} if twin is None else {twin: 1.0}
        y = raw[column]
        if column not in self.grains:
            return weights
        grain, some = self.grains[column], slice(None, None, -(-len(y) // _TRIED))
        half = np.arange(len(y[some])) % 2 == 0
        smooth = float(y[some][~half].var())  # smallest residual variance of a regression with arbitrary weights
        for number, inputs in enumerate(tried):
            if not inputs or len(inputs) > min(_MOST_INPUTS, len(half) // ROWS_PER_WEIGHT):
                continue
            before = _sum(raw, weights)[some]
            x, left = np.column_stack([one.numbers[some] for one in inputs]), y[some] - (before if number else 0.0)
            slopes = _slopes(x[half], left[half])
            smooth = min(smooth, float((left - x @ slopes)[~half].var()))
            least = grain / np.array([one.grain for one in inputs])
            multiples = _multiples(x, left, half, slopes, least, grain)
            if (left - x @ multiples)[~half].var() < _BETTER * (y[some] - before)[~half].var():
                weights = weights if number else {}
                for one, times in zip(inputs, multiples.tolist(), strict=True):
                    for part, weight in one.parts.items() if times else ():
                        weights[part] = weights.get(part, 0.0) + times * weight
        left = (y - _sum(raw, weights))[some][~half].var()
        explains_enough = left < y[some][~half].var() / 2 and left < 1.5 * smooth + grain**2 / 4
        return weights if twin is not None or explains_enough else {}


@dataclass(frozen=True)
class Step:
    """Replaces one outcome on a lattice by its residual: the outcome minus multiples of other columns.

    All columns have mean 0 and std 1, so all quantities are in stds.
    """

    column: int
    inputs: tuple[tuple[int, float], ...]
    """Other columns, and the multiple of each that is subtracted."""
    shift: float
    """Mean of the residual."""
    scale: float
    """Std of the residual. With `spreads`, the std where all their columns are 0."""
    low: float
    """Lowest value of the outcome itself."""
    high: float
    """Highest value of the outcome itself."""
    first: float = 0.0
    """Lowest value of the residual."""
    unit: float = 0.0
    """Step of the residual's lattice. 0 if it is on no lattice."""
    most: int = 0
    """Largest number of steps above `first`."""
    heaps: tuple[float | None, float | None] = (None, None)
    """Lower and upper end of the outcome if many rows are there, such as a stock that is sold out; else None. In such
    rows, a residual is drawn that would have led to the end or beyond it. It carries no information about the inputs.
    """
    ranks: tuple[float, ...] = ()
    """Only with heaps or slopes: quantiles of the residual minus its mean, divided by its std, at equally spaced levels
    from 0 to 1."""
    spreads: tuple[tuple[int, float], ...] = ()
    """One-hot columns of a category, and how much the std grows with each. Example: sales vary more on Saturdays."""
    slopes: tuple[tuple[int, float], ...] = ()
    """Other columns, and their slopes in a regression of the residual before it was rounded to its lattice."""

    @property
    def columns(self) -> tuple[int, ...]:
        """All columns that the step uses. The first is the outcome."""
        return (self.column, *(column for column, _ in (*self.inputs, *self.spreads, *self.slopes)))

    def moved(self, places: Mapping[int, int]) -> Step:
        """Return the same step with each column number replaced by `places[column]`."""
        inputs, spreads, slopes = (
            tuple((places[column], weight) for column, weight in each)
            for each in (self.inputs, self.spreads, self.slopes)
        )
        return replace(self, column=places[self.column], inputs=inputs, spreads=spreads, slopes=slopes)

    def width(self, rows: Matrix) -> Matrix:
        """Return the std of the residual in each row of `rows` (N, D). (N,)"""
        width = np.full(len(rows), self.scale)
        for column, weight in self.spreads:
            width += weight * rows[:, column]
        return np.asarray(np.maximum(width, SMALLEST))

    def difference(self, rows: Matrix) -> Matrix:
        """Return the residual of each row of `rows` (N, D), not scaled. (N,)"""
        left: Matrix = rows[:, self.column].copy()
        for column, weight in self.inputs:
            left -= weight * rows[:, column]
        return left

    def take_out(self, rows: Matrix) -> None:
        """Replace the outcome in `rows` (N, D) by its scaled residual, in place."""
        left, width = self.difference(rows), self.width(rows)
        draw, ranks = np.random.default_rng(_DRAWING), np.array(self.ranks)
        if self.slopes:
            columns, slopes = (list(each) for each in zip(*self.slopes, strict=True))
            level = product(rows[:, columns], np.array(slopes)[:, None])[:, 0] + self.shift
            cells = self.cells(rows[:, self.column], left).standardised(level, width)
            left = self.shift + width * cells.drawn(ranks, draw)
        elif self.ranks:
            left = self.beyond(rows[:, self.column], left, width, ranks, draw)
        rows[:, self.column] = (left - self.shift) / width

    def cells(self, own: Matrix, left: Matrix) -> Cells:
        """Return the range that each residual was in before the outcome was rounded and clipped.

        `own` (N,) are the outcomes, `left` (N,) their residuals.
        """
        near = self.unit / 2
        return Cells.of(left, self.unit, own < self.low + near, own > self.high - near)

    def beyond(self, own: Matrix, left: Matrix, width: Matrix, ranks: Matrix, draw: np.random.Generator) -> Matrix:
        """Return residuals as they may have been before the outcomes were clipped at their heaps. (N,)

        `own` (N,) are the outcomes, `left` (N,) their residuals, and `width` (N,) the stds of the residuals.
        """
        exact = own
        for end in self.heaps:
            if end is not None:
                exact = np.where(np.abs(exact - end) < self.unit / 2, end, exact)
        line = exact - left + self.shift
        full = unclipped(exact, line, self.heaps, ranks, draw, width) - line + self.shift
        return np.asarray(self.first + self.unit * np.rint((full - self.first) / self.unit))

    def put_back(self, columns: Tensor) -> None:
        """Replace the scaled residual by the outcome, in rows stored column by column (D, N), in place.

        Any generated residual is rounded to its lattice.
        """
        own = columns[self.column]
        if self.spreads:
            more = [weight * columns[column] for column, weight in self.spreads]
            own = own * torch.stack(more).sum(0).add_(self.scale).clamp_(min=SMALLEST) + self.shift
        else:
            own = own * self.scale + self.shift
        for column, weight in self.slopes:
            own = own + weight * columns[column]
        if self.unit:
            own = self.first + self.unit * ((own - self.first) / self.unit).round().clamp(0, self.most)
        for column, weight in self.inputs:
            own = own + weight * columns[column]
        columns[self.column] = own.clamp(self.low, self.high)


def _step(
    column: int,
    weights: Mapping[int, float],
    raw: Mapping[int, Matrix],
    grain: float,
    place: Mapping[int, int],
    scale: Matrix,
    groups: Sequence[Sequence[int]],
    lines: _Lines,
) -> tuple[Step, float]:
    """Return the step that subtracts the multiples `weights` of other columns from an outcome.

    Also returns the entropy of the residual in bits, given its regression if it has one. It is infinite if the residual
    is on no lattice.
    """
    own = float(scale[column])
    left = raw[column] - _sum(raw, weights)
    inputs = tuple((place[one], weight * float(scale[one]) / own) for one, weight in weights.items())
    spread = max(float(left.std()) / own, SMALLEST)
    ends = float(raw[column].min()) / own, float(raw[column].max()) / own
    step = Step(place[column], inputs, float(left.mean()) / own, spread, *ends)
    first = float(left.min())
    if not grain:
        return step, math.inf
    multiples = (left - first) / grain
    whole = np.rint(multiples)
    if np.abs(multiples - whole).max() > OFF:
        return step, math.inf
    common = max(1, int(np.gcd.reduce(np.unique(whole).astype(np.int64))))
    step = replace(step, first=first / own, unit=common * grain / own, most=int(whole.max()) // common)
    values = {one: (raw[one], place[one], float(scale[one])) for group in groups for one in group}
    codes = [[values[one] for one in group] for group in groups]
    with_line, bits = lines.with_line(step, raw[column] / own, left / own, codes)
    return with_line or _with_heaps(step, raw[column] / own, left / own, codes), bits


class _Lines:
    """Regressions of residuals on some columns of `rows` (N, D) of std 1."""

    def __init__(self, rows: Matrix, columns: Sequence[int]) -> None:
        self.columns = columns
        """Inputs of the regressions."""
        self.some = slice(None, None, -(-len(rows) // _MOST_LINED))
        """Rows that the regressions are fitted to."""
        self.given = Given(rows[self.some][:, list(columns)])

    def with_line(
        self, step: Step, own: Matrix, left: Matrix, codes: Sequence[Sequence[_Code]]
    ) -> tuple[Step | None, float]:
        """Return the step with a regression of the residual before rounding, and the bits that remain open.

        `own` (N,) are the outcomes, `left` (N,) their residuals, and `codes` the one-hot columns of each category. The
        step is None if the residual is no rounded noise, or depends on no column.
        """
        own, left = own[self.some], left[self.some]
        codes = [[(values[self.some], place, unit) for values, place, unit in group] for group in codes]

        def spread(off: Matrix, known: NDArray[np.bool_]) -> tuple[Step, Matrix]:
            return _with_spreads(replace(step, shift=float(off[known].mean())), off, codes, known)

        def level_and_width(off: Matrix, known: NDArray[np.bool_]) -> tuple[float, Matrix]:
            found, width = spread(off, known)
            return found.shift, width

        numbers = np.rint((left - step.first) / step.unit).astype(np.int64)
        has_inside = step.high - step.low >= 2 * step.unit  # else values are at both ends of the range at once
        line = find_line(step.cells(own, left), numbers, self.given, level_and_width) if has_inside else None
        bits = entropy(numbers)
        if line is None or not line.is_rounded_noise:
            return None, bits if line is None else min(bits, line.bits)
        found, width = spread(line.off, self.given.learned)
        if found.spreads and width.min() <= _SETTLED * step.unit:
            return None, bits
        slopes = tuple(
            (column, slope) for column, slope in zip(self.columns, line.slopes.tolist(), strict=True) if slope
        )
        return replace(found, slopes=slopes, ranks=tuple(line.ranks.tolist())) if slopes else None, line.bits


def _with_heaps(step: Step, own: Matrix, left: Matrix, codes: Sequence[Sequence[_Code]]) -> Step:
    """Return the step with its heaps and spreads.

    `own` (N,) are the outcomes, `left` (N,) their residuals, and `codes` the one-hot columns of each category.
    Residuals that would have led beyond a heap are found by iteration, as in clipping.py.
    """
    ends, inside = _heaps(step, own), np.ones(len(own), bool)
    for end in ends:
        inside &= (np.abs(own - end) > step.unit / 2) if end is not None else True
    if ends == (None, None) or not inside.any():
        return _with_spreads(step, left, codes, np.ones(len(own), bool))[0]
    step, draw = replace(step, heaps=ends), np.random.default_rng(_DRAWING)
    full, known = left, inside
    for _ in range(_TURNS):
        step, width = _with_spreads(replace(step, shift=float(full[known].mean())), full, codes, known)
        ranks = np.quantile(((full - step.shift) / width)[known], np.linspace(0, 1, _RANKS))
        full, known = step.beyond(own, left, width, ranks, draw), np.ones(len(own), bool)
    first = float(full.min())
    most = round((float(full.max()) - first) / step.unit)
    return replace(step, ranks=tuple(ranks.tolist()), first=first, most=most)


def _heaps(step: Step, own: Matrix) -> tuple[float | None, float | None]:
    """Return the lower and the upper end of an outcome (N,), each only if far more rows are at it than next to it."""
    if not _LONG <= (step.high - step.low) / step.unit <= _LONGEST:
        return None, None
    counts = np.bincount(np.rint((own - step.low) / step.unit).astype(np.int64))
    low, high = (ends[0] > max(_HEAPED * ends[1:].max(), _MANY * len(own)) for ends in (counts[:3], counts[:-4:-1]))
    return step.low if low else None, step.high if high else None


def _with_spreads(
    step: Step, left: Matrix, codes: Sequence[Sequence[_Code]], known: NDArray[np.bool_]
) -> tuple[Step, Matrix]:
    """Return the step with the category on which the std of the residuals depends most, and the std in each row (N,).

    `left` (N,) are the residuals, `codes` the one-hot columns of each category. Only rows marked in `known` (N,) are
    used. Without such a category, the std is the same in all rows.
    """
    usual = max(float(left[known].std()), SMALLEST)
    best, largest = step, _UNEVEN
    for group in codes:
        is_this = [values > values.mean() if values.std() else np.ones(len(values), bool) for values, _, _ in group]
        if any(np.count_nonzero(one & known) < _ENOUGH for one in is_this):
            continue
        stds = [max(_size(left[one & known] - step.shift), step.unit / _SURE) for one in is_this]
        if max(stds) / min(stds) > largest:
            largest = max(stds) / min(stds)
            # (values - values.min()) / 2 is 1 in rows with that value of the category, and 0 in the others.
            level = sum(std * float(-values.min()) / 2 for std, (values, _, _) in zip(stds, group, strict=True))
            slopes = ((at, std * unit / 2) for std, (_, at, unit) in zip(stds, group, strict=True))
            best = replace(step, scale=level, spreads=tuple(slopes))
            width = np.sum([std * one for std, one in zip(stds, is_this, strict=True)], 0)
    if best is step:
        return replace(step, scale=usual, spreads=()), np.full(len(left), usual)
    return best, width


def _size(numbers: Matrix) -> float:
    """Return the root mean square: unlike the std, it counts a constant deviation from the usual residual too."""
    return float(np.sqrt(np.square(numbers).mean()))


def unclipped(
    values: Matrix,
    line: Matrix,
    ends: tuple[float | None, float | None],
    off: Matrix,
    draw: np.random.Generator,
    width: Matrix | None = None,
) -> Matrix:
    """Draw the numbers (N,) that `values` (N,) may have been before they were clipped at the `ends`.

    Values inside the range are returned unchanged. A value at an end is replaced by `line` (N,) plus a residual, drawn
    such that the sum is not inside the range. Residuals divided by `width` (N,) have the quantiles `off`, at equally
    spaced levels from 0 to 1.
    """
    full, ranks = values.copy(), np.linspace(0, 1, len(off))
    chance = draw.random(len(values))
    for end, sign in zip(ends, (-1, 1), strict=True):
        if end is None:
            continue
        at = values == end
        times = 1.0 if width is None else width[at]
        need = sign * (end - line[at]) / times  # smallest residual, outwards, that leads to the end
        reach = sign * off[::sign]
        rank = np.interp(need, reach, ranks, left=0.0, right=1.0)
        drawn = np.interp(rank + (1 - rank) * chance[at], ranks, reach)
        full[at] = line[at] + sign * np.maximum(drawn, need) * times
    return full


def _slopes(x: Matrix, y: Matrix) -> Matrix:
    """Return the slopes of a regression of `y` (N,) on `x` (N, G), where columns of `x` may have any scale. (G,)"""
    std = np.maximum(x.std(0), 1e-12)
    return np.asarray(least_squares(x / std, y[:, None])[:, 0] / std)


def _multiples(x: Matrix, y: Matrix, half: NDArray[np.bool_], slopes: Matrix, least: Matrix, grain: float) -> Matrix:
    """Round the `slopes` (G,) of a regression of `y` (N,) on `x` (N, G) to multiples of `least` (G,).

    Repeats this for slopes that are fitted without outliers. Returns the multiples whose residuals, on a lattice of
    step `grain`, have the lowest entropy in the rows outside `half` (N,).
    """
    best, fewest = np.zeros_like(slopes), math.inf
    for _ in range(_TRIMMED):
        tried = np.rint(slopes / least) * least
        left = y - x @ tried
        open_bits = _bits(np.rint(left[~half] / grain))
        if open_bits < fewest:
            best, fewest = tried, open_bits
        off = np.abs(left - np.median(left[half]))
        usual = half & (off <= np.quantile(off[half], _USUAL))
        slopes = _slopes(x[usual], y[usual])
    return best


def _bits(values: Matrix) -> float:
    """Return the entropy of some values in bits."""
    _, count = np.unique(values, return_counts=True)
    share = count / len(values)
    return float(-(share * np.log2(share)).sum())


def _sum(raw: Mapping[int, Matrix], weights: Mapping[int, float]) -> Matrix:
    """Return the sum of the columns of `raw`, weighted by `weights`. (N,)"""
    total = np.zeros(len(next(iter(raw.values()))))
    for column, weight in weights.items():
        total += weight * raw[column]
    return total
