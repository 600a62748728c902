"""Next observations that are clipped: what a charge would be, and then 0 or 1 where it would be less or more.

What is clipped follows a line as long as it is inside its range, and the ends spoil that line for all rows. So the
matrix has the number before it was clipped. Inside the range that is the number itself. At an end it is one that a line
in observation and action, and what rows are off that line, might have led to beyond the end. Rows come back clipped.

This is Tobin's model of clipped numbers (1958). The line is found by turns: numbers beyond the ends are drawn from a
line, and the next line goes through these. A column is treated so only if its line tells most about who is at an end: a
speed that is 0 after a collision is not clipped, and stays a special value.

NOTE[paper]: the reference generates the clipped number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lattices import unclipped
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units, product
from synther.data.numbers import Bounded, Spiked
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout
    from synther.data.transitions import Transitions

_MOST_ROWS, _MOST_NUMBERS = 1 << 14, 1 << 21  # that tell whether a column is clipped
_TURNS = 12  # of a line and the numbers that are drawn from it
_RANKS = 129  # that tell how far rows are off the line
_NEAR = 0.1  # stds of a column that rows may be off the line
_TOLD = 0.25  # share of the bits about who is at an end that a line may leave open
_STRAYS = 0.01  # share of the rows at an end that a line through the others may have far from it
_SURE = 1e-3
_EXACT = 1e-5  # stds of a column
_DRAWING = 11  # of random numbers


@dataclass(frozen=True)
class Clip:
    """A column of the next observation that is clipped, and the line that it follows inside its range."""

    column: int
    ends: tuple[float | None, float | None]
    """Where it is clipped."""
    weights: tuple[float, ...]
    """Of the columns of the matrix that hold observation and action, without the gaps of special values."""
    level: float
    off: tuple[float, ...]
    """How far rows are off the line: at ranks from 0 to 1, equally spaced."""
    spread: float
    """The std of the column."""

    def unclipped(self, given: Matrix, values: Matrix, draw: np.random.Generator) -> Matrix:
        """What `values` (N,) may have been before they were clipped, of rows whose observations and actions are
        `given` (N, G)."""
        line = product(given, np.array(self.weights)[:, None])[:, 0] + self.level
        return unclipped(values, line, self.ends, np.array(self.off), draw)

    @property
    def is_exact(self) -> bool:
        """Whether rows are on the line but for rounding."""
        low, high = np.quantile(self.off, (0.01, 0.99))
        return float(high - low) <= _EXACT * self.spread

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Clip:
        """Of rows whose fields have these kinds."""
        found: Clip = checked(entry, cls, "layout.clips")
        finite((*found.weights, found.level, *found.off), "layout.clips")
        width = sum(kind.matrix_width for field in ("observation", "action") for kind in kinds[field])
        after = by_column(kinds["next_observation"])
        if len(found.weights) != width or not isinstance(after.get(found.column), Bounded) or len(found.off) < 2:
            raise FormatError("layout.clips: expected a column of numbers, and a weight of each given column")
        return found


def drawing() -> np.random.Generator:
    """The random numbers that clipped numbers are drawn with: the same for the same rows."""
    return np.random.default_rng(_DRAWING)


def with_clips(layout: Layout, rows: Transitions) -> Layout:
    """The same layout, with what clipped next observations would be in place of them."""
    after = by_column(layout.next_observation)
    likely = {
        column: (kind.low if kind.low in kind.spikes else None, kind.high if kind.high in kind.spikes else None)
        for column, kind in after.items()
        if isinstance(kind, Spiked) and len(kind.inner) < len(kind.spikes) and kind.tied is None
    }
    if not likely:
        return layout
    most = min(_MOST_ROWS, max(_MOST_NUMBERS // max(len(layout.given_columns), 1), 1))
    some = rows[:: -(-len(rows) // most)]
    given = layout.without_gaps(layout.pack(some)[:, layout.given_columns])
    units = Units.of(given)
    if units is None:
        return layout
    lines, clips = Straight((given - units.mean) / units.std), []
    for column, ends in likely.items():
        clip, kind = _clip(column, ends, lines, units, some.next_observation[:, column]), after[column]
        # A special value inside the range comes back by itself only if the line is exact.
        if clip is not None and isinstance(kind, Spiked) and (clip.is_exact or not kind.inner):
            after[column] = Bounded(kind.low, kind.high)
            clips.append(clip)
    return replace(layout, next_observation=tuple(after.values()), clips=tuple(clips))


def _clip(
    column: int, ends: tuple[float | None, float | None], lines: Straight, units: Units, values: Array
) -> Clip | None:
    """How a column is clipped; None if what is at its ends is there for another reason. `units` are those of the
    columns that `lines` are in."""
    values = values.astype(np.float64)
    own = Units.of(values[:, None])
    if own is None:
        return None
    std = float(own.std[0])
    sides = [np.zeros(len(values), bool) if end is None else values == end for end in ends]
    inside = ~(sides[0] | sides[1])
    if inside.sum() < ROWS_PER_WEIGHT * (len(units.mean) + 1):
        return None
    draw, known, full = drawing(), inside, values
    for turn in range(_TURNS):
        slopes, level = lines.fit(full, known)
        line = lines(slopes, level)
        off = np.quantile((full - line)[known], np.linspace(0, 1, _RANKS))
        if np.std((full - line)[known]) > _NEAR * std:
            return None
        if not turn and _strays(line, sides, ends, off, _EXACT * std) > _STRAYS:
            return None
        full, known = unclipped(values, line, ends, off, draw), np.ones(len(values), bool)
    for side, end, upper in zip(sides, ends, (False, True), strict=True):
        if end is not None and _open(side, _beyond(line, end, off, upper)) > _TOLD:
            return None
    return Clip(column, ends, *units.undone(slopes, level), tuple(off.tolist()), std)


def _beyond(line: Matrix, end: float, off: Matrix, upper: bool) -> Matrix:
    """The probability that each row is beyond an end. (N,)"""
    below = np.interp(end - line, off, np.linspace(0, 1, len(off)), left=0.0, right=1.0)
    return np.asarray(1 - below if upper else below)


def _open(side: Array, told: Matrix) -> float:
    """The share of the bits about who is at an end that the probabilities leave open."""
    share = float(np.clip(side.mean(), 1e-12, 1 - 1e-12))
    every = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    told = np.clip(told, _SURE, 1 - _SURE)
    return float(-np.log(np.where(side, told, 1 - told)).mean()) / every


def _strays(
    line: Matrix, sides: Sequence[Array], ends: tuple[float | None, float | None], off: Matrix, rounding: float
) -> float:
    """The share of the rows at an end that are further off the line than any row inside the range. What is at an end
    because it was there, and not because a line leads there, is found by this."""
    far = np.zeros(len(line), bool)
    for side, end, upper in zip(sides, ends, (False, True), strict=True):
        if end is not None:
            far |= side & ((line + off[-1] + rounding < end) if upper else (line + off[0] - rounding > end))
    return float(far.sum() / max(1, sum(int(side.sum()) for side in sides)))
