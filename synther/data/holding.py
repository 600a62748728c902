"""Model next observations that often stay exactly as they are, such as a budget in steps that buy nothing, or the place
of a robot at a wall.

A network that generates next values scatters them around the old ones: a budget would change a little in every row, and
sometimes grow. So the matrix holds the change of such a column, and a flag that tells whether the value stays (see
`Spiked`). Generated rows add the change to the observation, unless the flag is set.

In rows in which the value stays, the matrix holds a change that the column might have made otherwise: the prediction of
a linear regression plus a random residual. So the network learns from all rows how the column changes.

A column may have spikes of its own, such as a budget that is spent to exactly 0. A step to a spike then has a flag too.
Cosine and sine of a heading stay together, where the angle by which a step turns them is 0 (see turning.py).

A flag of the next observation may tell in which rows a value stays: a vital sign that was not measured keeps its last
value. Then this flag decides it in generated rows too.

NOTE[paper]: the reference generates next values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.categories import Drawn
from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import Line, is_linear
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.spikes import FEWEST_IN_A_SPIKE, SPIKE_GAP
from synther.data.transitions import PAIR, Transitions
from synther.data.values import Binary, Levels
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

_FEWEST_STAY = 0.02  # smallest share of rows in which a column stays
_MOST_CLIPPED = 0.1  # largest share of the rows in which a column of few values is at an end of its range
_FEWEST_TOLD = 0.02  # smallest share of rows with each value of a flag that decides whether a column stays
_MOST_OTHERS = 0.9  # and largest share of the other rows in which the column stays
_MOST_ROWS = 1 << 14  # maximum number of rows that the regression is fitted to
_EXACT = 0.01  # a regression is exact if it leaves at most this share of the std of changes
_TINY = 1e-3  # a tiny change is below this, in stds of all changes
_MOST_TINY = 0.2  # more tiny changes than this, relative to the rows without a change, mean that these were rounded
_ROUGH = 0.5  # the share that a regression may leave if a column stays because tiny changes are rounded to 0
_APART = 0.01  # columns stay together if they differ in at most this share of the rows in which one of them stays
_NUMBERS = Continuous, Bounded, Spiked
_DRAWING = 23  # seed of draws
_INSIDE = 0.999  # which part of its rounding cell a drawn number may lie in
_STANDS_OUT = 5  # times as many rows with no change as with any other change: more than a lattice or rounding explains


@dataclass(frozen=True)
class Held:
    """A column of the next observation that is stored as its change."""

    column: int
    low: float
    """Lowest value of the column itself, before or after a step."""
    high: float
    """Highest value of the column itself, before or after a step."""
    levels: tuple[float, ...] = ()
    """The column's values in increasing order, if there are few. The value after a step is rounded to one of them."""
    flag: tuple[int, float] | None = None
    """Column of the flag that alone decides whether this column stays, and its value in rows in which it does."""
    line: Line | None = None
    """How much the column changes where it does, given observation and action. The matrix holds such a change where it
    stays. None: 0."""
    landings: tuple[tuple[float, float], ...] = ()
    """Changes that stand for a step to a spike of the column, beyond all other changes, and these spikes."""
    sine: int | None = None
    """Column of the sine, if `column` is the cosine of an angle that a step turns. The change is then this angle."""

    def stays(self, change: Any, after: Any) -> Any:
        """Return in which generated rows (N,) the column stays, from its change (N,) and the next observation
        (N, W)."""
        return change == 0 if self.flag is None else after[:, self.flag[0]] == self.flag[1]

    def kept(self, before: Array, after: Array) -> NDArray[np.bool_]:
        """Return in which real rows the column (and that of the sine) is the same `before` (N, W) and `after` the step,
        or in which its flag tells so. (N,)"""
        if self.flag is not None:
            return np.asarray(after[:, self.flag[0]] == self.flag[1])
        own = [self.column] if self.sine is None else [self.column, self.sine]
        return np.asarray((before[:, own] == after[:, own]).all(1))

    def lands(self, after: Array, stays: NDArray[np.bool_]) -> list[tuple[NDArray[np.bool_], float]]:
        """Return for each spike in which rows a step leads to it, and the change that stands for that."""
        return [((after[:, self.column] == spike) & ~stays, change) for change, spike in self.landings]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Held:
        """Read it from JSON. `kinds` are the kinds of each field's columns."""
        found: Held = checked(entry, cls, "layout.held")
        finite((found.low, found.high, *found.levels), "layout.held")
        columns = by_column(kinds["next_observation"])
        kind = columns.get(found.column)
        finite(tuple(number for landing in found.landings for number in landing), "layout.held")
        spikes = (0.0, *(change for change, _ in found.landings))
        if found.flag is None and (not isinstance(kind, Spiked) or kind.spikes != spikes):
            raise FormatError(
                f"layout.held: expected changes with spikes {spikes} in column {found.column}, got {kind}"
            )
        if found.sine is not None and found.sine not in columns:
            raise FormatError(f"layout.held: expected a column of the next observation, got {found.sine}")
        if found.flag is not None:
            column, at = found.flag
            finite((at,), "layout.held")
            if not isinstance(kind, Continuous) or not isinstance(columns.get(column), (Binary, Drawn)):
                raise FormatError(
                    f"layout.held: expected numbers in column {found.column} and two values in column {column}, got "
                    f"{kind} and {columns.get(column)}"
                )
        if found.line is not None:
            width = sum(own.matrix_width for field in ("observation", "action") for own in kinds[field])
            found.line.check(width, "layout.held", "observation and action")
        return found


def with_held(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the change of a column replaces its next value, if it is often 0."""
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    told, held, patterns = told_by_flags(layout, rows), list[Held](), list[NDArray[np.bool_]]()
    ties = [kind.tied for kind in after.values() if isinstance(kind, Spiked) and kind.tied is not None]
    first = max(ties, default=-1) + 1

    @cache
    def sample() -> _Sample:
        some = rows.shuffled(_MOST_ROWS)
        return _Sample(layout, some, layout.pack(some))

    sines = dict(turn.columns for turn in layout.turns)
    for column in [*_candidates(layout, rows), *sines]:
        here, there = (side[:, column] for side in (rows.observation, rows.next_observation))
        span = float(min(here.min(), there.min())), float(max(here.max(), there.max()))
        one = Held(column, *span, getattr(before[column], "values", ()), sine=sines.get(column))
        spikes = np.array(getattr(after[column], "spikes", ()))
        if column in told:
            marked = replace(one, flag=told[column])
            line = Line.fit(*sample().moves(marked, spikes))
            if line is not None:
                after[column] = Continuous()
                held.append(replace(marked, line=line))
                continue
        steps = _Steps.of(one, rows, spikes, sample)
        if not steps.are_held():
            continue
        is_rounded, landings = steps.are_rounded(), steps.landings(there.dtype)
        if landings is None or (is_rounded and len(spikes)):
            continue
        if sample().explain(one, layout.given_columns, _ROUGH if is_rounded else _EXACT):
            continue
        one, stays, moves = replace(one, landings=landings), steps.stays, steps.moves
        same = (np.count_nonzero(stays != other) <= _APART * np.count_nonzero(stays) for other in patterns)
        number = next((number for number, is_same in enumerate(same) if is_same), len(patterns))
        patterns += [stays] if number == len(patterns) else []
        ends = (float(moves.min()), float(moves.max())) if one.sine is None else (-math.inf, math.inf)
        after[column] = Spiked(
            *ends, (0.0, *(change for change, _ in landings)), SPIKE_GAP * float(moves.std()) or 1.0,
            tied=first + number, tied_spike=0.0, usual=float(moves.mean()), by_flag=True,
        )  # fmt: skip
        others = [place for place in layout.columns_of(PAIR[1]) if place != layout.next_columns[column]]
        if not sample().explain(one, [*layout.given_columns, *others]):
            line = Line.fit(*sample().moves(one, spikes))
            one = replace(one, line=line or Line.flat(len(layout.given_columns), moves))
        held.append(one)
    return replace(layout, next_observation=tuple(after.values()), held=tuple(held)) if held else layout


def told_by_flags(layout: Layout, rows: Transitions) -> dict[int, tuple[int, float]]:
    """Return the columns that stay wherever a flag of the next observation has some value: column of the flag, and this
    value. Of several flags, the one that tells of most rows is taken."""
    flags = [column for column, kind in by_column(layout.next_observation).items() if isinstance(kind, (Binary, Drawn))]
    flags = [column for column in flags if len(np.unique(rows.next_observation[:, column])) == 2]
    found, kinds = {}, by_column(layout.next_observation)
    for column in _candidates(layout, rows) if flags else ():
        if isinstance(kinds[column], Spiked):
            continue
        stays, most = rows.observation[:, column] == rows.next_observation[:, column], _FEWEST_TOLD
        for flag in flags:
            for at in np.unique(rows.next_observation[:, flag]).tolist():
                marked = rows.next_observation[:, flag] == at
                share = float(marked.mean())
                if most <= share <= 1 - _FEWEST_TOLD and stays[marked].all() and stays[~marked].mean() < _MOST_OTHERS:
                    found[column], most = (flag, at), share
    return found


def _candidates(layout: Layout, rows: Transitions) -> list[int]:
    """Return the columns whose changes may replace their next values: numbers that are in no circle or length and share
    no spike with other columns, and numbers of few values that are not clipped."""
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    elsewhere = {column for sphere in layout.spheres for column in sphere.columns}  # turns are among them
    drawn = {
        layout.places[number].source.start for number in layout.table_places if layout.places[number].field == PAIR[1]
    }

    def is_plain(column: int, kind: Kind) -> bool:
        if isinstance(kind, Levels):
            ends = np.isin(rows.next_observation[:, column].astype(np.float64), (kind.values[0], kind.values[-1]))
            return isinstance(before[column], Levels) and bool(ends.mean() < _MOST_CLIPPED)
        if isinstance(kind, Spiked) and kind.tied is not None:
            return False
        return isinstance(kind, _NUMBERS) and isinstance(before[column], _NUMBERS)

    if rows.next_observation.dtype.kind != "f":
        return []
    return [column for column, kind in after.items() if column not in elsewhere | drawn and is_plain(column, kind)]


class _Sample(NamedTuple):
    """Rows that regressions are fitted to."""

    layout: Layout
    rows: Transitions
    matrix: Matrix
    """(N, D)"""

    def changes(self, one: Held) -> Matrix:
        """Return by how much a column changes in each row. (N,)"""
        if one.sine is not None:
            return self.matrix[:, self.layout.next_columns[one.column]]
        here, there = (getattr(self.rows, field)[:, one.column].astype(np.float64) for field in PAIR)
        return np.asarray(there - here)

    def moves(self, one: Held, spikes: Matrix) -> tuple[Matrix, Matrix]:
        """Return observation and action as columns of the matrix (M, G), and the change (M,), in rows in which a column
        does not stay or reach one of its `spikes` (S,)."""
        before, after = (getattr(self.rows, field) for field in PAIR)
        where = ~one.kept(before, after) & ~np.isin(after[:, one.column], spikes)
        return self.matrix[:, self.layout.given_columns][where], self.changes(one)[where]

    def explain(self, one: Held, columns: Sequence[int], left: float = _EXACT) -> bool:
        """Return whether a column's change is a linear function of these `columns` of the matrix, also where it stays,
        up to the share `left` of its std.

        For example, a place follows from the next speed, which is 0 where the place stays. A drawn change would hide
        this. The height of a body may follow from the last speed. Then it needs no flag.
        """
        return is_linear(self.changes(one), self.matrix[:, columns], left)


class _Steps(NamedTuple):
    """What the steps of some rows do to a column."""

    here: Matrix
    """The column before the step. (N,)"""
    stays: NDArray[np.bool_]
    """Whether the column stays. (N,)"""
    spikes: Matrix
    """The spikes of the column. (S,)"""
    reached: Matrix
    """Those to which some step leads. (R,)"""
    moves: Matrix
    """All changes but those to a spike. (M,)"""

    @classmethod
    def of(cls, one: Held, rows: Transitions, spikes: Matrix, sample: Callable[[], _Sample]) -> _Steps:
        here, there = (side[:, one.column].astype(np.float64) for side in (rows.observation, rows.next_observation))
        stays = one.kept(rows.observation, rows.next_observation)
        lands = np.isin(there, spikes) & ~stays
        moves = (there - here)[~stays & ~lands] if one.sine is None else sample().moves(one, spikes)[1]
        return cls(here, stays, spikes, np.unique(there[lands]), moves)

    def are_held(self) -> bool:
        """Return whether the column often stays where it is, not only on a spike, and far more often than it makes any
        of its moves."""
        if (self.stays & ~np.isin(self.here, self.spikes)).mean() < _FEWEST_STAY:
            return False
        if len(self.moves) < FEWEST_IN_A_SPIKE or not self.moves.any():
            return False
        _, others = np.unique(self.moves, return_counts=True)
        return bool(np.count_nonzero(self.stays) > _STANDS_OUT * others.max())

    def are_rounded(self) -> bool:
        """Return whether the column seems to stay only because tiny changes are rounded to 0: there are others that are
        almost as small."""
        share = self.stays.mean()
        return bool(np.mean(np.abs(self.moves) < _TINY * self.moves.std()) * (1 - share) > _MOST_TINY * share)

    def landings(self, dtype: Any) -> tuple[tuple[float, float], ...] | None:
        """Return changes that stand for a step to each spike that is reached: powers of 2, which every type of numbers
        holds exactly, beyond all moves. Returns None if the type `dtype` ends before."""
        far = math.ceil(math.log2(max(np.abs(self.moves).max(), 1.0)))
        if far + len(self.reached) >= np.finfo(dtype).maxexp:
            return None
        return tuple((2.0 ** (far + 1 + number), spike) for number, spike in enumerate(self.reached.tolist()))


def put_changes(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Write the encoded change of each held column into `matrix` (N, D). `sources` are the fields of the rows.

    Where a column stays or reaches a spike, the change is drawn from its regression. Of a column with few values, it is
    the change to a random number that is rounded to the next value.
    """
    kinds: Any = by_column(layout.next_observation)
    for one in layout.held:
        before, after = (sources[field] for field in PAIR)
        kind, start = kinds[one.column], layout.next_columns[one.column]
        stays, there = one.kept(before, after), after[:, one.column].astype(np.float64)
        if one.sine is not None:
            change = matrix[:, start].copy()  # the angle of the turn
        else:
            change = (_unrounded(there, np.array(one.levels)) if one.levels else there) - before[:, one.column]
        change[stays] = 0.0
        marked, is_special = change.copy(), stays
        for lands, mark in one.lands(after, stays):
            marked[lands], is_special = mark, is_special | lands
        matrix[:, start : start + kind.matrix_width] = kind.encode(marked[:, None])
        if one.line is not None:
            change[is_special] = one.line.drawn(matrix[is_special][:, layout.given_columns], one.column)
        matrix[is_special, start] = change[is_special]


def _unrounded(values: Matrix, levels: Matrix) -> Matrix:
    """Return random numbers (N,) that are rounded to these `values` (N,), of all `levels`."""
    half = np.diff(levels) / 2
    place = np.searchsorted(levels[:-1] + half, values)
    low, high = np.r_[half[:1], half][place], np.r_[half, half[-1:]][place]
    return np.asarray(values + np.random.default_rng(_DRAWING).uniform(-_INSIDE * low, _INSIDE * high))


def put_held(held: Sequence[Held], fields: Mapping[str, Tensor]) -> None:
    """Replace the change of each held column of the next observation by the value after the step, in place.

    Angles by which a step turns cosine and sine are left to `put_turned`.
    """
    before, after = fields["observation"], fields["next_observation"]
    for one in held:
        if one.sine is not None:
            continue
        here, change = before[:, one.column], after[:, one.column]
        moved = here.double() + change.double()
        for _, spike in one.landings:  # a step that is not to the spike at an end does not end there
            if spike in (one.low, one.high):
                moved = spike + (moved - spike).abs() * (1 if spike == one.low else -1)
        moved = moved.clamp(one.low, one.high)
        if one.levels:
            levels = moved.new_tensor(one.levels)
            moved = levels[torch.bucketize(moved, (levels[:-1] + levels[1:]) / 2)]
        for mark, spike in one.landings:
            moved = torch.where(change == mark, spike, moved)
        after[:, one.column] = torch.where(one.stays(change, after), here, moved.to(after.dtype))
