"""Model next observations that the environment clips, such as a battery charge that is clipped to 0 and 1.

Inside its range, a clipped column is a linear function of observation and action, and of sine and cosine of angles,
plus noise. The values at the ends would spoil that regression for all rows. So the matrix holds the number before
clipping. Inside the range this is the value itself. At an end it is drawn: the prediction of the regression plus a
residual, such that the sum is beyond the end. Generated rows are clipped again.

This is the tobit model (Tobin 1958). The regression is found by iteration: numbers beyond the ends are drawn from the
regression, and the next regression is fitted to them. A column is modelled in this way only if its regression predicts
well which rows are at an end. For example, a speed that is 0 after a collision is not clipped, and keeps 0 as a spike.

The change of a column may be clipped instead, such as the power of a plant that follows its target by at most 10 % in a
step. The matrix then holds the number that would follow without this limit.

NOTE[paper]: the reference generates the clipped number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lattices import unclipped
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units, is_linear, predicted
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.transitions import PAIR
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout
    from synther.data.transitions import Transitions

_MOST_ROWS, _MOST_NUMBERS = 1 << 14, 1 << 21  # maximum number of rows, and of numbers in them, that clips are fitted on
_TURNS = 12  # number of iterations of regression and draw
_RANKS = 129  # number of quantiles that describe the residual distribution
_NEAR = 0.1  # maximum std of the residuals, in stds of the column
_MOST_OPEN = 0.25  # maximum share of the entropy of "is at this end" that the regression may leave open
_STRAYS = 0.01  # maximum share of the rows at an end that the first regression may predict too far inside the range
_SURE = 1e-3  # smallest probability that a prediction may have
_ALIKE = 1e-4  # a change this near to an end of its range, in stds, is at the end, because numbers are rounded
_FEWEST = 0.01  # minimum share of the changes that are at an end
_EXACT = 1e-5  # an exact regression has residuals below this, in stds of the column
_DRAWING = 11  # seed of the draws


@dataclass(frozen=True)
class Clip:
    """A clipped column of the next observation, and its regression on observation and action."""

    column: int
    ends: tuple[float | None, float | None]
    """Lower and upper end of the range, None on a side where the column is not clipped."""
    weights: tuple[float, ...]
    """Weight of each regressor (see `Layout.regressors`)."""
    level: float
    """Intercept of the regression."""
    off: tuple[float, ...]
    """Quantiles of the residuals, at equally spaced levels from 0 to 1."""
    spread: float
    """Std of the column."""
    of_change: bool = False
    """Whether the column's change is clipped, so that ends, regression and std are those of the change."""

    def unclipped(self, given: Matrix, before: Matrix, values: Matrix, draw: np.random.Generator) -> Matrix:
        """Draw the numbers (N,) that `values` (N,) may have been before clipping.

        `given` (N, G) are the regressors, and `before` (N,) the values of the column in the observation.
        """
        line = predicted(given, self.weights, self.level)
        if self.of_change:
            values = _at_ends(values - before, self.ends, self.spread)
        full = unclipped(values, line, self.ends, np.array(self.off), draw)
        return before + full if self.of_change else full

    @property
    def is_exact(self) -> bool:
        """Whether the regression predicts the column exactly, apart from rounding errors."""
        low, high = np.quantile(self.off, (0.01, 0.99))
        return float(high - low) <= _EXACT * self.spread

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "of_change" or value}

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Clip:
        """Read a clip from JSON. `kinds` are the kinds of each field's columns."""
        found: Clip = checked(entry, cls, "layout.clips")
        finite((*found.weights, found.level, *found.off), "layout.clips")
        given = [kind for field in ("observation", "action") for kind in kinds[field]]
        width = sum(kind.matrix_width + 2 * bool(kind.circle) for kind in given)
        after = by_column(kinds["next_observation"])
        possible = (Bounded, Continuous) if found.of_change else Bounded
        if len(found.weights) != width or not isinstance(after.get(found.column), possible) or len(found.off) < 2:
            raise FormatError(
                f"layout.clips: expected a bounded column of the next observation, {width} weights (one for each "
                "matrix column of observation and action, and two for each circular one) and at least 2 quantiles, "
                f"got column {found.column}, {len(found.weights)} weights and {len(found.off)} quantiles"
            )
        return found


def drawing() -> np.random.Generator:
    """Return the random number generator for numbers beyond the ends. Its seed is fixed: the same rows give the same
    numbers."""
    return np.random.default_rng(_DRAWING)


def with_clips(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which clipped next observations are replaced by the numbers before clipping."""
    after = by_column(layout.next_observation)
    candidates = {
        column: (kind.low if kind.low in kind.spikes else None, kind.high if kind.high in kind.spikes else None)
        for column, kind in after.items()
        if isinstance(kind, Spiked) and len(kind.inner) < len(kind.spikes) and kind.shared in (None, *kind.inner)
    }
    limited = _limited(layout, rows)
    if not candidates and not limited:
        return layout
    most = min(_MOST_ROWS, max(_MOST_NUMBERS // max(len(layout.given_columns), 1), 1))
    some = rows.shuffled(most)
    given = layout.regressors(layout.pack(some))
    units = Units.of(given)
    if units is None:
        return layout
    lines, clips = Straight((given - units.mean) / units.std), []
    for column, ends in candidates.items():
        clip, kind = _clip(column, ends, lines, units, some.next_observation[:, column]), after[column]
        # Clipping replaces the spikes of the column. A spike inside the range is then generated only if the regression
        # is exact.
        if clip is not None and isinstance(kind, Spiked) and (clip.is_exact or not kind.inner):
            after[column] = Bounded(kind.low, kind.high)
            clips.append(clip)
    for column, ends in limited.items():
        changes = _change(some, column)
        # A place follows from the next speed, which may be clipped itself.
        if is_linear(changes, np.c_[given, np.delete(some.next_observation, column, axis=1)], _ALIKE):
            continue
        clip = _clip(column, ends, lines, units, _at_ends(changes, ends, float(changes.std())))
        clips += [replace(clip, of_change=True)] if clip is not None else []
    return replace(layout, next_observation=tuple(after.values()), clips=tuple(clips))


def _limited(layout: Layout, rows: Transitions) -> dict[int, tuple[float | None, float | None]]:
    """Return the columns whose changes are often at the lower or the upper end of their range, and these ends."""
    elsewhere = {column for sphere in layout.spheres for column in sphere.columns} | {one.column for one in layout.held}
    found = dict[int, tuple[float | None, float | None]]()
    for column, kind in by_column(layout.next_observation).items():
        if not isinstance(kind, (Continuous, Bounded)) or column in elsewhere:
            continue
        changes = _change(rows, column)
        with np.errstate(over="ignore", invalid="ignore"):
            low, high, std = changes.min(), changes.max(), changes.std()
        if not np.isfinite(std):
            continue
        is_at = [(np.abs(changes - end) <= _ALIKE * std).mean() >= _FEWEST for end in (low, high)]
        if low < high and any(is_at):
            found[column] = (float(low) if is_at[0] else None), (float(high) if is_at[1] else None)
    return found


def _change(rows: Transitions, column: int) -> Matrix:
    """Return by how much a column of the observation changes in each row. (N,)"""
    with np.errstate(over="ignore"):
        return np.subtract(rows.next_observation[:, column], rows.observation[:, column], dtype=np.float64)


def _at_ends(changes: Matrix, ends: tuple[float | None, float | None], std: float) -> Matrix:
    """Return the changes (N,), of which those near an end are at the end."""
    for end in ends:
        if end is not None:
            changes = np.where(np.abs(changes - end) <= _ALIKE * std, end, changes)
    return changes


def put_limited(clips: Sequence[Clip], fields: Mapping[str, Tensor]) -> None:
    """Clip the changes of columns, in place."""
    for clip in clips:
        if clip.of_change:
            before, after = (fields[field][:, clip.column] for field in PAIR)
            low, high = (None if end is None else before + end for end in clip.ends)
            after.clamp_(low, high)


def _clip(
    column: int, ends: tuple[float | None, float | None], lines: Straight, units: Units, values: Array
) -> Clip | None:
    """Fit how a column with these `values` (N,) is clipped at its `ends`.

    Returns None if its values at the ends have another reason. `lines` fits regressions on observation and action,
    which were standardised with `units`.
    """
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
        if end is not None and _open_share(side, _beyond(line, end, off, upper)) > _MOST_OPEN:
            return None
    return Clip(column, ends, *units.undone(slopes, level), tuple(off.tolist()), std)


def _beyond(line: Matrix, end: float, off: Matrix, upper: bool) -> Matrix:
    """Return the probability that prediction `line` (N,) plus residual is beyond an end. (N,)

    `off` are the quantiles of the residuals. `upper` tells whether it is the upper end.
    """
    below = np.interp(end - line, off, np.linspace(0, 1, len(off)), left=0.0, right=1.0)
    return np.asarray(1 - below if upper else below)


def _open_share(side: Array, chance: Matrix) -> float:
    """Return the cross-entropy of the predicted probabilities `chance` (N,) that a row is at an end, divided by the
    entropy. `side` (N,) marks the rows that are at the end."""
    share = float(np.clip(side.mean(), 1e-12, 1 - 1e-12))
    entropy = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    chance = np.clip(chance, _SURE, 1 - _SURE)
    return float(-np.log(np.where(side, chance, 1 - chance)).mean()) / entropy


def _strays(
    line: Matrix, sides: Sequence[Array], ends: tuple[float | None, float | None], off: Matrix, rounding: float
) -> float:
    """Return the share of the rows at an end whose residual is larger than that of any row inside the range.

    Many such rows mean that values are at the end for another reason than clipping: the regression predicts a number
    inside the range. `sides` mark the rows at each end, `off` are the quantiles of the residuals inside the range, and
    `rounding` is the tolerance for rounding errors.
    """
    far = np.zeros(len(line), bool)
    for side, end, upper in zip(sides, ends, (False, True), strict=True):
        if end is not None:
            far |= side & ((line + off[-1] + rounding < end) if upper else (line + off[0] - rounding > end))
    return float(far.sum() / max(1, sum(int(side.sum()) for side in sides)))
