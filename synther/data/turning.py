"""Replace the next cosine and sine of an angle by the angle by which a step turns them.

At the same speed, a cosine changes by much or by little, depending on the angle where the step begins. No regression on
single columns explains this, so a network would have to learn a product of sines. The angle between the two
observations is much simpler: it depends on the speed alone. So the matrix holds this angle instead of the next cosine,
and 0 instead of the next sine. In generated rows, the observation is turned by the angle to get the next one.

If a wheel turns by more than half a round in a step, the angle is ambiguous, because it could have turned the other
way. The nearest angle to the prediction of a linear regression on observation and action is taken.

NOTE[paper]: the reference generates cosine and sine themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units, predicted
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.transitions import PAIR, Transitions
from synther.data.wrapping import unwrapped
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

_MOST_ROWS = 1 << 14  # maximum number of rows in which turns are searched
_ROUNDS = 5  # number of iterations of the regression, each of which can follow faster turns
_STRAYS = 1e-3  # maximum share of steps that differ from the prediction by more than a quarter of a round
_ROUND = 2 * math.pi


@dataclass(frozen=True)
class Turn:
    """Two columns, cosine and sine, that a step turns. A regression predicts the angle to a quarter of a round."""

    columns: tuple[int, int]
    weights: tuple[float, ...]
    """Weight of each column of the matrix that holds observation or action."""
    shift: float
    """Intercept of the regression."""

    def angle(self, given: Matrix, before: Matrix, after: Matrix) -> Matrix:
        """Return the angle from the columns `before` (N, 2) of an observation to `after`, those of the next one. (N,)

        `given` (N, G) are the columns of the matrix that hold observation and action.
        """
        expected = predicted(given, self.weights, self.shift)
        return unwrapped(expected, _angle(before, after), _ROUND)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Turn:
        """Read a turn from JSON. `kinds` are the kinds of each field's columns."""
        found: Turn = checked(entry, cls, "layout.turns")
        finite((*found.weights, found.shift), "layout.turns")
        given = sum(kind.matrix_width for field in ("observation", "action") for kind in kinds[field])
        after = by_column(kinds["next_observation"])
        angle, rest = (after.get(one) for one in found.columns)
        if (
            len(found.weights) != given
            or not isinstance(angle, (Continuous, Spiked))
            or not isinstance(rest, Continuous)
        ):
            raise FormatError(
                f"layout.turns: expected two continuous columns of the next observation and {given} weights (one for "
                f"each matrix column of observation and action), got columns {found.columns} and "
                f"{len(found.weights)} weights"
            )
        return found


def with_turns(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the angle of a step replaces the next cosine and sine."""
    after = by_column(layout.next_observation)
    plain = {column for column, kind in after.items() if isinstance(kind, (Continuous, Bounded))}
    circles = (sphere.columns for sphere in layout.spheres if len(sphere.columns) == 2 and sphere.is_round)
    pairs = [columns for columns in circles if plain >= {*columns}]
    if not pairs:
        return layout
    some = rows.shuffled(_MOST_ROWS)
    given = layout.pack(some)[:, layout.given_columns]
    found = [_turn(pair, given, some) for pair in pairs]
    turns = tuple(turn for turn in found if turn is not None)
    turned = {column for turn in turns for column in turn.columns}
    kinds = (Continuous() if column in turned else kind for column, kind in after.items())
    return replace(layout, next_observation=tuple(kinds), turns=turns)


def _turn(columns: Sequence[int], given: Matrix, rows: Transitions) -> Turn | None:
    """Fit how a step turns two columns. Returns None if a regression does not predict the angle."""
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
    """Return the angle from each vector `before` (N, 2) to `after` (N, 2), from -pi to pi. (N,)"""
    across = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return np.asarray(np.arctan2(across, (before * after).sum(1)))


def put_angles(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Write the angle of each turn, and 0, into the two columns of the next observation in `matrix` (N, D).

    `sources` are the fields of the rows, (N, W) each.
    """
    given = matrix[:, layout.given_columns]
    for turn in layout.turns:
        pair = list(turn.columns)
        before, after = (sources[field][:, pair].astype(np.float64) for field in PAIR)
        first, second = (layout.next_columns[column] for column in pair)
        matrix[:, first], matrix[:, second] = turn.angle(given, before, after), 0.0


def put_turned(turns: Sequence[Turn], fields: Mapping[str, Tensor]) -> None:
    """Write the next cosine and sine of each turn, in place: those of the observation, turned by the angle.

    The angle is in the first of the two columns of the next observation.
    """
    before, after = fields["observation"], fields["next_observation"]
    for turn in turns:
        first, second = turn.columns
        cosine, sine, angle = before[:, first].double(), before[:, second].double(), after[:, first].double()
        along, across = angle.cos(), angle.sin()
        after[:, first] = (cosine * along - sine * across).to(after.dtype)
        after[:, second] = (sine * along + cosine * across).to(after.dtype)
