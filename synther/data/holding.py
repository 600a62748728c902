"""Model next observations that often stay exactly as they are, such as a budget in steps that buy nothing, or the place
of a robot at a wall.

A network that generates next values scatters them around the old ones: a budget would change a little in every row, and
sometimes grow. So the matrix holds the change of such a column, and a flag that tells whether the value stays (see
`Spiked`). Generated rows add the change to the observation, unless the flag is set.

In rows in which the value stays, the matrix holds a change that the column might have made otherwise: the prediction of
a linear regression plus a random residual. So the network learns from all rows how the column changes.

A flag of the next observation may tell in which rows a value stays: a vital sign that was not measured keeps its last
value. Then this flag decides it in generated rows too.

NOTE[paper]: the reference generates next values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.categories import Drawn
from synther.data.inference import FEWEST_IN_A_SPIKE, SPIKE_GAP
from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import ROWS_PER_WEIGHT, Line, Straight, Units
from synther.data.numbers import Bounded, Continuous, Spiked
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
_OPEN = 0.5  # a regression knows which values stay if it is off by less than this in all rows, in stds of the changes
_MOST_ROWS = 1 << 14  # maximum number of rows that the regression is fitted to
_EXACT = 0.01  # a column follows from others if they leave at most this share of the std of its changes
_APART = 0.01  # columns stay together if they differ in at most this share of the rows in which one of them stays
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

    def stays(self, change: Any, after: Any) -> Any:
        """Return in which rows (N,) the column stays, from its change (N,) and the next observation (N, W)."""
        return change == 0 if self.flag is None else after[:, self.flag[0]] == self.flag[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Held:
        """Read it from JSON. `kinds` are the kinds of each field's columns."""
        found: Held = checked(entry, cls, "layout.held")
        finite((found.low, found.high, *found.levels), "layout.held")
        columns = by_column(kinds["next_observation"])
        kind = columns.get(found.column)
        if found.flag is None and (not isinstance(kind, Spiked) or kind.spikes != (0.0,)):
            raise FormatError(f"layout.held: expected changes with a spike at 0 in column {found.column}, got {kind}")
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
        return _Sample(some, layout.pack(some))

    for column in _candidates(layout, rows):
        here, there = (side[:, column].astype(np.float64) for side in (rows.observation, rows.next_observation))
        kept = Held(
            column,
            float(min(here.min(), there.min())),
            float(max(here.max(), there.max())),
            getattr(before[column], "values", ()),
        )
        stays = here == there
        moves = (there - here)[~stays]
        is_often = stays.mean() >= _FEWEST_STAY and _stands_out(stays, moves)
        if column not in told and not is_often:
            continue
        line, knows = _line(layout, sample(), column, told.get(column))
        if column in told and line is not None:
            after[column] = Continuous()
            held.append(replace(kept, flag=told[column], line=line))
            continue
        if knows or not is_often:
            continue
        same = (np.count_nonzero(stays != one) <= _APART * np.count_nonzero(stays) for one in patterns)
        number = next((number for number, is_same in enumerate(same) if is_same), len(patterns))
        patterns += [stays] if number == len(patterns) else []
        after[column] = Spiked(
            float(moves.min()), float(moves.max()), (0.0,), SPIKE_GAP * float(moves.std()) or 1.0, tied=first + number,
            usual=float(moves.mean()), by_flag=True,
        )  # fmt: skip
        drawn = line or Line.flat(len(layout.given_columns), moves)
        held.append(kept if _follows(layout, sample(), column) else replace(kept, line=drawn))
    return replace(layout, next_observation=tuple(after.values()), held=tuple(held)) if held else layout


def told_by_flags(layout: Layout, rows: Transitions) -> dict[int, tuple[int, float]]:
    """Return the columns that stay wherever a flag of the next observation has some value: column of the flag, and this
    value. Of several flags, the one that tells of most rows is taken."""
    flags = [column for column, kind in by_column(layout.next_observation).items() if isinstance(kind, (Binary, Drawn))]
    flags = [column for column in flags if len(np.unique(rows.next_observation[:, column])) == 2]
    found, candidates = {}, _candidates(layout, rows) if flags else []
    for column in candidates:
        stays, most = rows.observation[:, column] == rows.next_observation[:, column], _FEWEST_TOLD
        for flag in flags:
            for at in np.unique(rows.next_observation[:, flag]).tolist():
                marked = rows.next_observation[:, flag] == at
                share = float(marked.mean())
                if most <= share <= 1 - _FEWEST_TOLD and stays[marked].all() and stays[~marked].mean() < _MOST_OTHERS:
                    found[column], most = (flag, at), share
    return found


def _candidates(layout: Layout, rows: Transitions) -> list[int]:
    """Return the columns whose changes may replace their next values: numbers that are in no circle or length, and
    numbers of few values that are not clipped."""
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    elsewhere = {column for sphere in layout.spheres for column in sphere.columns}  # turns are among them
    drawn = {
        layout.places[number].source.start for number in layout.table_places if layout.places[number].field == PAIR[1]
    }

    def is_plain(column: int, kind: Kind) -> bool:
        if isinstance(kind, Levels):
            ends = np.isin(rows.next_observation[:, column].astype(np.float64), (kind.values[0], kind.values[-1]))
            return isinstance(before[column], Levels) and bool(ends.mean() < _MOST_CLIPPED)
        return isinstance(kind, (Continuous, Bounded)) and isinstance(before[column], (Continuous, Bounded))

    if rows.next_observation.dtype.kind != "f":
        return []
    return [column for column, kind in after.items() if column not in elsewhere | drawn and is_plain(column, kind)]


def _stands_out(stays: NDArray[np.bool_], moves: Matrix) -> bool:
    """Return whether a column stays in far more rows (N,) than it makes any of its `moves` (M,)."""
    if len(moves) < FEWEST_IN_A_SPIKE:
        return False
    _, others = np.unique(moves, return_counts=True)
    return bool(np.count_nonzero(stays) > _STANDS_OUT * others.max())


class _Sample(NamedTuple):
    """Rows that regressions are fitted to, and their matrix (N, D)."""

    rows: Transitions
    matrix: Matrix


def _line(layout: Layout, sample: _Sample, column: int, flag: tuple[int, float] | None) -> tuple[Line | None, bool]:
    """Fit how much a column changes where it does. Returns None if too few rows move.

    A `flag` and its value tell which rows stay. Also returns whether the regression knows which values stay: the height
    of a body that has landed and has no speed.
    """
    some, matrix = sample
    here, there = (side[:, column].astype(np.float64) for side in (some.observation, some.next_observation))
    moves = here != there if flag is None else some.next_observation[:, flag[0]] != flag[1]
    change, given = there - here, matrix[:, layout.given_columns]
    line = Line.fit(given[moves], change[moves])
    if line is None:
        return None, False
    left = change[moves] - line(given[moves])
    open_ = max(float(left.std()), float(np.sqrt(np.square(line(given[~moves])).mean())) if not moves.all() else 0.0)
    return line, open_ < _OPEN * float(change[moves].std())


def _follows(layout: Layout, sample: _Sample, column: int) -> bool:
    """Return whether a column follows from the rest of the row in a linear way, also where it stays.

    For example, a place follows from the next speed, which is 0 where the place stays. A drawn change would hide this.
    """
    (some, matrix), own = sample, layout.next_columns[column]
    others = [*layout.given_columns, *(place for place in layout.columns_of(PAIR[1]) if place != own)]
    change = matrix[:, own] - some.observation[:, column]
    units = Units.of(matrix[:, others])
    if units is None or len(some) < ROWS_PER_WEIGHT * (len(others) + 1):
        return False
    lines = Straight((matrix[:, others] - units.mean) / units.std)
    return bool(np.std(change - lines(*lines.fit(change))) < _EXACT * change.std())


def put_changes(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Write the encoded change of each held column into `matrix` (N, D). `sources` are the fields of the rows.

    Where a column stays, the change is drawn from its regression. Of a column with few values, it is the change to a
    random number that is rounded to the next value.
    """
    kinds: Any = by_column(layout.next_observation)
    for one in layout.held:
        here, there = (sources[field][:, one.column].astype(np.float64) for field in PAIR)
        stays = one.stays(there - here, sources[PAIR[1]])
        change = (_unrounded(there, np.array(one.levels)) if one.levels else there) - here
        change[stays] = 0.0
        kind, start = kinds[one.column], layout.next_columns[one.column]
        matrix[:, start : start + kind.matrix_width] = kind.encode(change[:, None])
        if one.line is not None:
            matrix[stays, start] = one.line.drawn(matrix[stays][:, layout.given_columns], one.column)


def _unrounded(values: Matrix, levels: Matrix) -> Matrix:
    """Return random numbers (N,) that are rounded to these `values` (N,), of all `levels`."""
    half = np.diff(levels) / 2
    place = np.searchsorted(levels[:-1] + half, values)
    low, high = np.r_[half[:1], half][place], np.r_[half, half[-1:]][place]
    return np.asarray(values + np.random.default_rng(_DRAWING).uniform(-_INSIDE * low, _INSIDE * high))


def put_held(held: Sequence[Held], fields: Mapping[str, Tensor]) -> None:
    """Replace the change of each held column of the next observation by the value after the step, in place."""
    before, after = fields["observation"], fields["next_observation"]
    for one in held:
        here, change = before[:, one.column], after[:, one.column]
        moved = (here.double() + change.double()).clamp(one.low, one.high)
        if one.levels:
            levels = moved.new_tensor(one.levels)
            moved = levels[torch.bucketize(moved, (levels[:-1] + levels[1:]) / 2)]
        after[:, one.column] = torch.where(one.stays(change, after), here, moved.to(after.dtype))
