"""Model next observations that often stay exactly as they are, such as a budget in steps that buy nothing.

A network that generates next values scatters them around the old ones: a budget would change a little in every row, and
sometimes grow. So the matrix holds the change of such a column, with a spike at 0 (see `Spiked`): a flag that tells
whether the value stays. Generated rows add the change to the observation, so that no change means the same value.

A flag of the next observation may tell in which rows a value stays: a vital sign that was not measured keeps its last
value. Then the flag decides this in generated rows too (see `Flagged`).

NOTE[paper]: the reference generates next values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.categories import Drawn
from synther.data.inference import FEWEST_IN_A_SPIKE, SPIKE_GAP
from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units, product
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.transitions import PAIR, Transitions
from synther.data.values import Binary, Levels
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

_FEWEST_STAY, _FEWEST_MOVE = 0.1, 0.02  # smallest share of rows in which a column stays, and in which it changes
_FEWEST_TOLD = 0.02  # smallest share of rows with each value of a flag that decides whether a column stays
_MOST_OTHERS = 0.9  # and largest share of the other rows in which the column stays
_OPEN = 0.5  # smallest share of the std of changes that a regression must leave open
_MOST_ROWS = 1 << 14  # maximum number of rows that the regression is fitted to
_DRAWING, _RANKS = 23, 257  # seed of draws, and number of quantiles that describe the residuals of a regression
_INSIDE = 0.999  # which part of its rounding cell a drawn number may lie in
_STANDS_OUT = 5  # times as many rows with no change as with any other change: more than a lattice or rounding explains


@dataclass(frozen=True)
class Flagged:
    """Describes a column that stays in exactly those rows in which a flag of the next observation has some value.

    In these rows the matrix holds a change that the column might have made otherwise: the prediction of a linear
    regression plus a random residual. So the network learns from all rows how it changes, and nothing of the flag.
    """

    flag: int
    """Column of the flag."""
    at: float
    """Value of the flag in rows in which the column stays."""
    weights: tuple[float, ...]
    """Weight of each matrix column of observation and action."""
    level: float
    """Intercept of the regression."""
    off: tuple[float, ...]
    """Quantiles of the residuals, at equally spaced levels from 0 to 1."""

    def drawn(self, given: Matrix) -> Matrix:
        """Draw changes for rows with these matrix columns of observation and action (N, G). (N,)"""
        rank = np.random.default_rng(_DRAWING).random(len(given))
        line = product(given, np.array(self.weights)[:, None])[:, 0] + self.level
        return np.asarray(line + np.interp(rank, np.linspace(0, 1, len(self.off)), self.off))


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
    flagged: Flagged | None = None
    """When the column stays, if a flag alone decides it."""

    def stays(self, change: Any, after: Any) -> Any:
        """Return in which rows (N,) the column stays, from its change (N,) and the next observation (N, W)."""
        return change == 0 if self.flagged is None else after[:, self.flagged.flag] == self.flagged.at

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Held:
        """Read it from JSON. `kinds` are the kinds of each field's columns."""
        found: Held = checked(entry, cls, "layout.held")
        finite((found.low, found.high, *found.levels), "layout.held")
        columns, flagged = by_column(kinds["next_observation"]), found.flagged
        kind = columns.get(found.column)
        if flagged is None:
            if not isinstance(kind, Spiked) or kind.spikes != (0.0,):
                raise FormatError(
                    f"layout.held: expected changes with a spike at 0 in column {found.column}, got {kind}"
                )
            return found
        finite((flagged.at, flagged.level, *flagged.weights, *flagged.off), "layout.held")
        width = sum(own.matrix_width for field in ("observation", "action") for own in kinds[field])
        if not isinstance(kind, Continuous) or not isinstance(columns.get(flagged.flag), (Binary, Drawn)):
            raise FormatError(
                f"layout.held: expected numbers in column {found.column} and two values in column {flagged.flag}, got "
                f"{kind} and {columns.get(flagged.flag)}"
            )
        if len(flagged.weights) != width or len(flagged.off) < 2:
            raise FormatError(
                f"layout.held: expected {width} weights, one for each matrix column of observation and action, and at "
                f"least 2 quantiles, got {len(flagged.weights)} and {len(flagged.off)}"
            )
        return found


def with_held(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the change of a column replaces its next value, if it is often 0."""
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    told, held, patterns = told_by_flags(layout, rows), list[Held](), dict[bytes, int]()
    ties = [kind.tied for kind in after.values() if isinstance(kind, Spiked) and kind.tied is not None]
    first = max(ties, default=-1) + 1
    for column in _candidates(layout, rows):
        here, there = (side[:, column].astype(np.float64) for side in (rows.observation, rows.next_observation))
        kept = Held(
            column,
            float(min(here.min(), there.min())),
            float(max(here.max(), there.max())),
            getattr(before[column], "values", ()),
        )
        line = _Line.of(layout, rows, column, told.get(column))
        if column in told and line is not None:
            after[column] = Continuous()
            flagged = Flagged(*told[column], line.weights, line.level, line.off)
            held.append(replace(kept, flagged=flagged))
            continue
        stays = here == there
        moves = (there - here)[~stays]
        usual = _FEWEST_STAY <= stays.mean() <= 1 - _FEWEST_MOVE and _stands_out(stays, moves)
        # A line knows which values stay too: the height of a body that has landed and has no speed.
        if not usual or (line is not None and line.leaves < _OPEN):
            continue
        number = patterns.setdefault(np.packbits(stays).tobytes(), first + len(patterns))
        after[column] = Spiked(
            float(moves.min()), float(moves.max()), (0.0,), SPIKE_GAP * float(moves.std()) or 1.0, tied=number,
            usual=float(moves.mean()), by_flag=True,
        )  # fmt: skip
        held.append(kept)
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
            return isinstance(before[column], Levels) and bool(ends.mean() < _FEWEST_STAY)
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


class _Line(NamedTuple):
    """A linear regression on observation and action of how much a column changes where it does."""

    weights: tuple[float, ...]
    """Weight of each matrix column of observation and action."""
    level: float
    off: tuple[float, ...]
    """Quantiles of the residuals."""
    leaves: float
    """Std of the residuals, in stds of the changes."""

    @classmethod
    def of(cls, layout: Layout, rows: Transitions, column: int, flag: tuple[int, float] | None) -> _Line | None:
        """Fit it to a sample of the `rows`. A `flag` and its value tell which of them stay. None: too few rows move."""
        some = rows.shuffled(_MOST_ROWS)
        here, there = (side[:, column].astype(np.float64) for side in (some.observation, some.next_observation))
        moves = here != there if flag is None else some.next_observation[:, flag[0]] != flag[1]
        if np.count_nonzero(moves) < ROWS_PER_WEIGHT * (len(layout.given_columns) + 1):
            return None
        change, given = (there - here)[moves], layout.pack(some[moves])[:, layout.given_columns]
        units = Units.of(given)
        if units is None:
            return None
        lines = Straight((given - units.mean) / units.std)
        slopes, level = lines.fit(change)
        left = change - lines(slopes, level)
        off = np.quantile(left, np.linspace(0, 1, _RANKS))
        return cls(*units.undone(slopes, level), tuple(off.tolist()), float(left.std() / max(change.std(), 1e-300)))


def put_changes(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Write the encoded change of each held column into `matrix` (N, D). `sources` are the fields of the rows.

    Of a column with few values, it is the change to a random number that is rounded to the next value.
    """
    kinds: Any = by_column(layout.next_observation)
    for one in layout.held:
        here, there = (sources[field][:, one.column].astype(np.float64) for field in PAIR)
        stays = one.stays(there - here, sources[PAIR[1]])
        change = (_unrounded(there, np.array(one.levels)) if one.levels else there) - here
        change[stays] = 0.0 if one.flagged is None else one.flagged.drawn(matrix[stays][:, layout.given_columns])
        kind, start = kinds[one.column], layout.next_columns[one.column]
        matrix[:, start : start + kind.matrix_width] = kind.encode(change[:, None])


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
