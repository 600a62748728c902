"""Cosine and sine of an angle, a step later: as the angle by which the step turns them.

A step of the same speed changes a cosine by much or by little, depending on where on its circle it begins. No
regression on single columns explains that, so that a network has to learn a product of sines. The angle between the two
observations is what the speed says, at every place on the circle. So the matrix has this angle in place of the next
cosine, and 0 in place of the next sine; rows come back turned by it.

A wheel that turns by more than half a round in a step could as well have turned the other way. A line in the columns of
observation and action tells which way is meant.

NOTE[paper]: the reference takes cosine and sine as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units, product
from synther.data.numbers import Bounded, Continuous
from synther.data.transitions import PAIR, Transitions
from synther.data.wrapping import unwrapped
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

_MOST_ROWS = 1 << 14  # that tell whether columns turn
_ROUNDS = 5  # of a line that follows faster and faster turns
_STRAYS = 1e-3  # share of steps that may be more than a quarter of a round from that line
_ROUND = 2 * math.pi


@dataclass(frozen=True)
class Turn:
    """Two columns of an observation that a step turns, and the line that tells the angle to a quarter of a round."""

    columns: tuple[int, int]
    weights: tuple[float, ...]
    """Of the columns of the matrix that hold observation and action."""
    shift: float

    def angle(self, given: Matrix, before: Matrix, after: Matrix) -> Matrix:
        """The angle from the columns (N, 2) of an observation to those of the next one. (N,)"""
        expected = product(given, np.array(self.weights)[:, None])[:, 0] + self.shift
        return unwrapped(expected, _angle(before, after), _ROUND)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Turn:
        """Of rows whose fields have these kinds."""
        found: Turn = checked(entry, cls, "layout.turns")
        finite((*found.weights, found.shift), "layout.turns")
        given = sum(kind.matrix_width for field in ("observation", "action") for kind in kinds[field])
        after = by_column(kinds["next_observation"])
        if len(found.weights) != given or not all(isinstance(after.get(one), Continuous) for one in found.columns):
            raise FormatError("layout.turns: expected two columns of real numbers, and a weight of each given column")
        return found


def with_turns(layout: Layout, rows: Transitions) -> Layout:
    """The same layout, with the angle of a step in place of next observations that turn."""
    after = by_column(layout.next_observation)
    plain = {column for column, kind in after.items() if isinstance(kind, (Continuous, Bounded))}
    pairs = [sphere.columns for sphere in layout.spheres if len(sphere.columns) == 2 and plain >= {*sphere.columns}]
    if not pairs:
        return layout
    some = rows[:: -(-len(rows) // _MOST_ROWS)]
    given = layout.pack(some)[:, layout.given_columns]
    found = [_turn(pair, given, some) for pair in pairs]
    turns = tuple(turn for turn in found if turn is not None)
    turned = {column for turn in turns for column in turn.columns}
    kinds = (Continuous() if column in turned else kind for column, kind in after.items())
    return replace(layout, next_observation=tuple(kinds), turns=turns)


def _turn(columns: Sequence[int], given: Matrix, rows: Transitions) -> Turn | None:
    """How a step turns two columns; None if it may lead anywhere."""
    before, after = (side[:, list(columns)].astype(np.float64) for side in (rows.observation, rows.next_observation))
    seen = _angle(before, after)
    units = Units.of(given)
    if units is None or len(seen) < ROWS_PER_WEIGHT * (given.shape[1] + 1):
        return None
    lines, expected = Straight((given - units.mean) / units.std), np.zeros(len(seen))
    slopes, level = np.zeros(given.shape[1]), 0.0
    for _ in range(_ROUNDS):
        angle = unwrapped(expected, seen, _ROUND)
        near = np.abs(angle - expected) <= _ROUND / 4
        if not near.any():
            return None
        slopes, level = lines.fit(angle, near)
        expected = lines(slopes, level)
    strays = np.abs(unwrapped(expected, seen, _ROUND) - expected) > _ROUND / 4
    if strays.mean() > _STRAYS:
        return None
    return Turn((columns[0], columns[1]), *units.undone(slopes, level))


def _angle(before: Matrix, after: Matrix) -> Matrix:
    across = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return np.asarray(np.arctan2(across, (before * after).sum(1)))


def put_angles(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Put the angle by which a step turns two columns, and 0, in place of the next ones."""
    given = matrix[:, layout.given_columns]
    for turn in layout.turns:
        pair = list(turn.columns)
        before, there = (sources[field][:, pair].astype(np.float64) for field in PAIR)
        first, second = (layout.next_columns[column] for column in pair)
        matrix[:, first], matrix[:, second] = turn.angle(given, before, there), 0.0


def put_turned(turns: Sequence[Turn], fields: Mapping[str, Tensor]) -> None:
    """Turn next observations, which have the angle in the first column of each pair, from where observations are."""
    here, there = fields["observation"], fields["next_observation"]
    for turn in turns:
        first, second = turn.columns
        cosine, sine, angle = here[:, first].double(), here[:, second].double(), there[:, first].double()
        along, across = angle.cos(), angle.sin()
        there[:, first] = (cosine * along - sine * across).to(there.dtype)
        there[:, second] = (sine * along + cosine * across).to(there.dtype)
