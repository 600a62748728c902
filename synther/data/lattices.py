"""Outcomes on a lattice (whole numbers, steps of 0.1) as what other columns on a lattice leave of them.

A stock grows by what was ordered, a score counts what happened. What whole multiples leave of such an outcome is on a
lattice too, and often has few values, or only multiples of 3. It is rounded to those when rows come back, so that rows
keep the arithmetic of their world. A regression with other weights would lose the lattice. Where what is left is a
number that a sensor has rounded, a line tells more of it (rounding.py).

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
"""Residuals are scaled up to std 1, but never by more than its inverse: less than this is rounding."""
_MOST_INPUTS = 1024
_TRIED = 1 << 14  # rows that weights are found in
_TRIMMED, _USUAL = 4, 0.9  # rounds, and share of the rows that are taken for usual
_BETTER = 0.9  # share of the variance of a change that weights other than 1 for the last value may leave
_HEAPED, _MANY = 3.0, 0.005  # times as many rows as a step or two further in, and share of all rows, are many at an end
_LONG, _LONGEST = 8, 1 << 20  # steps from one end to the other of what may be clipped
_TURNS, _RANKS = 12, 257  # of what may have led beyond the ends
_DRAWING = 13  # of random numbers
_FEWER = 0.1  # bits that the last value alone has to leave less open with a line than whole multiples of others do
_SETTLED = 0.2  # steps of a lattice that what is left spreads in a category where it is settled, and not rounded noise
_MOST_LINED = 1 << 15  # rows that a line is found in
_UNEVEN, _ENOUGH = 1.3, 200  # times the spread of one value of a category that another has, and rows of each value
_SURE = 6.0  # of what never varies: so many errors of 1 std fit into a step of its lattice


class Codes(NamedTuple):
    """Columns of -1 and 1 that stand for a category: 1 where it has a value."""

    columns: Sequence[int]
    values: Sequence[float]
    """Numbers that the columns stand for; none where they are no numbers."""


class _Input(NamedTuple):
    """What an outcome may have to do with: a sum of columns."""

    numbers: Matrix
    grain: float
    parts: dict[int, float]
    """The columns, and how often each is taken."""


_Code = tuple[Matrix, int, float]
"""A column that is 1 or -1 less its mean (N,), its place, and what it was divided by."""


@dataclass(frozen=True)
class Grid:
    """Which columns of the matrix are on a lattice."""

    grains: Mapping[int, float]
    """Of columns that hold numbers: by multiples of what they differ."""
    codes: Sequence[Codes] = ()
    steps: Sequence[tuple[int, int | None]] = ()
    """Outcomes, each with the column of its last value, where there is one. An outcome may follow from those before."""

    @classmethod
    def of(cls, layout: Layout) -> Grid:
        """Observations and actions, next observations, and the reward."""
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
                stand = isinstance(kind, (Categorical, Codebook)) and len(columns) == kind.class_count
                values = [row[0] for row in class_rows(kind)] if stand and kind.source_width == 1 else []
                codes.append(Codes(columns, values))
        (reward,) = layout.columns_of("reward")[:1] or (None,)
        if reward in grains:
            steps.append((reward, None))
        return cls(grains, codes, steps)

    def among(self, columns: Collection[int]) -> Grid:
        """The same with no other outcomes than `columns`."""
        return replace(self, steps=[step for step in self.steps if step[0] in columns])

    def fit(self, drawn: Matrix, place: Mapping[int, int], scale: Matrix, given: Sequence[int]) -> list[Step]:
        """What to do about the outcomes, learned from scaled rows, of which each column was divided by its `scale` and
        now is at its `place`. Columns of the steps are places."""
        raw = {column: drawn[:, here] * scale[column] for column, here in place.items()} if self.steps else {}
        numbers = [self._number(column, raw) for column in given if column in raw and column in self.grains]
        singles = []
        for group in self.codes:
            known = [column for column in group.columns if column in raw]
            if known and len(known) == len(group.values):
                parts = {column: value / 2 for column, value in zip(group.columns, group.values, strict=True)}
                grain = grain_of(sorted(group.values))
                numbers += [_Input(_sum(raw, parts), grain, parts)] if grain else []
            usual = max(known, key=lambda column: float(raw[column].mean()), default=None)  # the others differ from it
            singles += [_Input(raw[column], 2.0, {column: 1.0}) for column in known if column != usual]
        found, there = [], {*given}.intersection(raw)
        groups = [group.columns for group in self.codes if there.issuperset(group.columns)]
        lines = _Lines(drawn, [place[column] for column in given if column in place])
        for column, twin in self.steps:
            if column in raw and (twin is None or twin in raw):
                weights = self._weights(column, twin, (numbers, singles), raw)
                if weights:
                    grain = self.grains.get(column, 0.0)
                    make = partial(_step, column, raw=raw, grain=grain, place=place, scale=scale, groups=groups)
                    step, bits = make(weights, lines=lines)
                    if twin is not None and len(weights) > 1:
                        other, fewer = make({twin: 1.0}, lines=lines)
                        step = other if other.slopes and fewer < bits - _FEWER else step
                    found.append(step)
                    numbers += [self._number(column, raw)] if column in self.grains else []
        return found

    def _number(self, column: int, raw: Mapping[int, Matrix]) -> _Input:
        return _Input(raw[column], self.grains[column], {column: 1.0})

    def _weights(
        self, column: int, twin: int | None, tried: Sequence[Sequence[_Input]], raw: Mapping[int, Matrix]
    ) -> dict[int, float]:
        """By how much an outcome grows with each column: none where no multiples tell much about it."""
        told: dict[int, float] = {} if twin is None else {twin: 1.0}
        y = raw[column]
        if column not in self.grains:
            return told
        grain, some = self.grains[column], slice(None, None, -(-len(y) // _TRIED))
        half = np.arange(len(y[some])) % 2 == 0
        smooth = float(y[some][~half].var())
        for number, inputs in enumerate(tried):
            if not inputs or len(inputs) > min(_MOST_INPUTS, len(half) // ROWS_PER_WEIGHT):
                continue
            before = _sum(raw, told)[some]
            x, left = np.column_stack([one.numbers[some] for one in inputs]), y[some] - (before if number else 0.0)
            slopes = _slopes(x[half], left[half])
            smooth = min(smooth, float((left - x @ slopes)[~half].var()))
            least = grain / np.array([one.grain for one in inputs])
            multiples = _multiples(x, left, half, slopes, least, grain)
            if (left - x @ multiples)[~half].var() < _BETTER * (y[some] - before)[~half].var():
                told = told if number else {}
                for one, times in zip(inputs, multiples.tolist(), strict=True):
                    for part, weight in one.parts.items() if times else ():
                        told[part] = told.get(part, 0.0) + times * weight
        left = (y - _sum(raw, told))[some][~half].var()
        is_told = left < y[some][~half].var() / 2 and left < 1.5 * smooth + grain**2 / 4
        return told if twin is not None or is_told else {}


@dataclass(frozen=True)
class Step:
    """An outcome on a lattice, less some multiples of other columns. All columns are of std 1."""

    column: int
    inputs: tuple[tuple[int, float], ...]
    """Other columns, and how many stds of this one are taken out for one of theirs."""
    shift: float
    scale: float
    """Mean and std of what remains."""
    low: float
    high: float
    """Of the outcome itself."""
    first: float = 0.0
    unit: float = 0.0
    most: int = 0
    """What remains is `first` and up to `most` times `unit`; unless that is 0, where it is on no lattice."""
    heaps: tuple[float | None, float | None] = (None, None)
    """Ends of the outcome that many rows are at: a stock that is sold out. What remains there is what might have led
    beyond the end, so that it tells nothing about the other columns."""
    ranks: tuple[float, ...] = ()
    """With heaps or slopes: what remains at ranks from 0 to 1, equally spaced, without its mean and divided by its
    spread."""
    spreads: tuple[tuple[int, float], ...] = ()
    """Columns that stand for a category, and how much `scale` grows with each: sales vary more on Saturdays."""
    slopes: tuple[tuple[int, float], ...] = ()
    """Other columns, and those of a line in them that what remains follows before it is rounded to its lattice."""

    @property
    def columns(self) -> tuple[int, ...]:
        return (self.column, *(column for column, _ in (*self.inputs, *self.spreads, *self.slopes)))

    def moved(self, places: Mapping[int, int]) -> Step:
        """The same where columns have these places."""
        inputs, spreads, slopes = (
            tuple((places[column], weight) for column, weight in each)
            for each in (self.inputs, self.spreads, self.slopes)
        )
        return replace(self, column=places[self.column], inputs=inputs, spreads=spreads, slopes=slopes)

    def width(self, rows: Matrix) -> Matrix:
        """The std of what remains of it in rows (N, D). (N,)"""
        width = np.full(len(rows), self.scale)
        for column, weight in self.spreads:
            width += weight * rows[:, column]
        return np.asarray(np.maximum(width, SMALLEST))

    def difference(self, rows: Matrix) -> Matrix:
        """What remains of it in rows (N, D). (N,)"""
        left: Matrix = rows[:, self.column].copy()
        for column, weight in self.inputs:
            left -= weight * rows[:, column]
        return left

    def take_out(self, rows: Matrix) -> None:
        left, width = self.difference(rows), self.width(rows)
        draw, ranks = np.random.default_rng(_DRAWING), np.array(self.ranks)
        if self.slopes:
            columns, slopes = (list(each) for each in zip(*self.slopes, strict=True))
            level = product(rows[:, columns], np.array(slopes)[:, None])[:, 0] + self.shift
            left = self.shift + width * self.cells(rows[:, self.column], left).less(level, width).drawn(ranks, draw)
        elif self.ranks:
            left = self.beyond(rows[:, self.column], left, width, ranks, draw)
        rows[:, self.column] = (left - self.shift) / width

    def cells(self, own: Matrix, left: Matrix) -> Cells:
        """Between which numbers what is `left` of outcomes (N,) was before it was rounded."""
        near = self.unit / 2
        return Cells.of(left, self.unit, own < self.low + near, own > self.high - near)

    def beyond(self, own: Matrix, left: Matrix, width: Matrix, ranks: Matrix, draw: np.random.Generator) -> Matrix:
        """What remains of outcomes (N,), of which `left` (N,) remains, as it may have been before they were clipped."""
        exact = own
        for end in self.heaps:
            if end is not None:
                exact = np.where(np.abs(exact - end) < self.unit / 2, end, exact)
        line = exact - left + self.shift
        full = unclipped(exact, line, self.heaps, ranks, draw, width) - line + self.shift
        return np.asarray(self.first + self.unit * np.rint((full - self.first) / self.unit))

    def put_back(self, columns: Tensor) -> None:
        """The reverse, in rows that lie by columns, (D, N): whatever remains, on its lattice."""
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
    """What to do about an outcome of which other columns tell so much, and how many bits that leaves open."""
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
    lined, bits = lines.taken_out(step, raw[column] / own, left / own, codes)
    return lined or _with_heaps(step, raw[column] / own, left / own, codes), bits


class _Lines:
    """Lines in some columns of `rows` (N, D) of std 1."""

    def __init__(self, rows: Matrix, columns: Sequence[int]) -> None:
        self.columns, self.some = columns, slice(None, None, -(-len(rows) // _MOST_LINED))
        """Those that are given, and the rows that lines are found in."""
        self.given = Given(rows[self.some][:, list(columns)])

    def taken_out(
        self, step: Step, own: Matrix, left: Matrix, codes: Sequence[Sequence[_Code]]
    ) -> tuple[Step | None, float]:
        """A step with the line that what is `left` (N,) of the outcomes (N,) follows before it is rounded, if there is
        one, and how many bits remain open."""
        own, left = own[self.some], left[self.some]
        codes = [[(values[self.some], place, unit) for values, place, unit in group] for group in codes]

        def spread(off: Matrix, known: NDArray[np.bool_]) -> tuple[Step, Matrix]:
            return _with_spreads(replace(step, shift=float(off[known].mean())), off, codes, known)

        def level_and_width(off: Matrix, known: NDArray[np.bool_]) -> tuple[float, Matrix]:
            found, width = spread(off, known)
            return found.shift, width

        numbers = np.rint((left - step.first) / step.unit).astype(np.int64)
        line = find_line(step.cells(own, left), numbers, self.given, level_and_width)
        bits = entropy(numbers)
        if line is None or not line.is_told:
            return None, bits if line is None else min(bits, line.bits)
        found, width = spread(line.off, self.given.learned)
        if found.spreads and width.min() <= _SETTLED * step.unit:
            return None, bits
        slopes = tuple(
            (column, slope) for column, slope in zip(self.columns, line.slopes.tolist(), strict=True) if slope
        )
        return replace(found, slopes=slopes, ranks=tuple(line.ranks.tolist())), line.bits


def _with_heaps(step: Step, own: Matrix, left: Matrix, codes: Sequence[Sequence[_Code]]) -> Step:
    """The same, with what may lie beyond an end that many of the outcomes (N,) are at, and with its spreads. What
    remains of the outcomes is `left` (N,).

    What would have led beyond the ends is found by turns, as in clipping.py.
    """
    ends, inside = _heaps(step, own), np.ones(len(own), bool)
    for end in ends:
        inside &= (np.abs(own - end) > step.unit / 2) if end is not None else True
    if ends == (None, None) or not inside.any():
        return _with_spreads(step, left, codes, inside)[0]
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
    """The ends of an outcome (N,) that far more rows are at than beside it."""
    if not _LONG <= (step.high - step.low) / step.unit <= _LONGEST:
        return None, None
    counts = np.bincount(np.rint((own - step.low) / step.unit).astype(np.int64))
    low, high = (ends[0] > max(_HEAPED * ends[1:].max(), _MANY * len(own)) for ends in (counts[:3], counts[:-4:-1]))
    return step.low if low else None, step.high if high else None


def _with_spreads(
    step: Step, left: Matrix, codes: Sequence[Sequence[_Code]], known: NDArray[np.bool_]
) -> tuple[Step, Matrix]:
    """The same, with the category that tells most about how far what is `left` (N,) spreads, and how far it spreads in
    each row (N,). The rows that are `known` (N,) tell."""
    usual = max(float(left[known].std()), SMALLEST)
    best, told = step, _UNEVEN
    for group in codes:
        is_this = [values > values.mean() if values.std() else np.ones(len(values), bool) for values, _, _ in group]
        if any(np.count_nonzero(one & known) < _ENOUGH for one in is_this):
            continue
        stds = [max(_size(left[one & known] - step.shift), step.unit / _SURE) for one in is_this]
        if max(stds) / min(stds) > told:
            told = max(stds) / min(stds)
            level = sum(std * float(-values.min()) / 2 for std, (values, _, _) in zip(stds, group, strict=True))
            slopes = ((at, std * unit / 2) for std, (_, at, unit) in zip(stds, group, strict=True))
            best = replace(step, scale=level, spreads=tuple(slopes))
            width = np.sum([std * one for std, one in zip(stds, is_this, strict=True)], 0)
    if best is step:
        return replace(step, scale=usual, spreads=()), np.full(len(left), usual)
    return best, width


def _size(numbers: Matrix) -> float:
    """The root of their mean square: of what a category has always, too, if that is not the usual."""
    return float(np.sqrt(np.square(numbers).mean()))


def unclipped(
    values: Matrix,
    line: Matrix,
    ends: tuple[float | None, float | None],
    off: Matrix,
    draw: np.random.Generator,
    width: Matrix | None = None,
) -> Matrix:
    """What `values` (N,) may have been before they were clipped at the `ends`: as far from the `line` (N,) as others,
    which are `off` it by so much at ranks from 0 to 1, and not inside the range. `off` is times `width` (N,)."""
    full, ranks = values.copy(), np.linspace(0, 1, len(off))
    chance = draw.random(len(values))
    for end, sign in zip(ends, (-1, 1), strict=True):
        if end is None:
            continue
        at = values == end
        times = 1.0 if width is None else width[at]
        need = sign * (end - line[at]) / times  # by how much at least the row is off its line
        reach = sign * off[::sign]
        rank = np.interp(need, reach, ranks, left=0.0, right=1.0)
        drawn = np.interp(rank + (1 - rank) * chance[at], ranks, reach)
        full[at] = line[at] + sign * np.maximum(drawn, need) * times
    return full


def _slopes(x: Matrix, y: Matrix) -> Matrix:
    std = np.maximum(x.std(0), 1e-12)
    return np.asarray(least_squares(x / std, y[:, None])[:, 0] / std)


def _multiples(x: Matrix, y: Matrix, half: NDArray[np.bool_], slopes: Matrix, least: Matrix, grain: float) -> Matrix:
    """Multiples of `least` near the slopes, or near those without the rows that are the furthest off: whichever leave
    the fewest bits open in the other half of the rows."""
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
    """The entropy of some values."""
    _, count = np.unique(values, return_counts=True)
    share = count / len(values)
    return float(-(share * np.log2(share)).sum())


def _sum(raw: Mapping[int, Matrix], weights: Mapping[int, float]) -> Matrix:
    """Of some columns, each so many times. (N,)"""
    total = np.zeros(len(next(iter(raw.values()))))
    for column, weight in weights.items():
        total += weight * raw[column]
    return total
