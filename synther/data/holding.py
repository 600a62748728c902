"""Model next observations that often stay exactly as they are, such as a budget in steps that buy nothing.

A network that generates next values scatters them around the old ones: a budget would change a little in every row, and
sometimes grow. So the matrix holds the change of such a column, with a spike at 0 (see `Spiked`): a flag that tells
whether the value stays. Generated rows add the change to the observation, so that no change means the same value.

NOTE[paper]: the reference generates next values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.inference import FEWEST_IN_A_SPIKE, SPIKE_GAP
from synther.data.kind import Array, Kind, Matrix, by_column
from synther.data.lines import ROWS_PER_WEIGHT, Straight, Units
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.transitions import PAIR, Transitions
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

_FEWEST_STAY, _FEWEST_MOVE = 0.1, 0.02  # smallest share of rows in which a column stays, and in which it changes
_OPEN = 0.5  # smallest share of the std of changes that a regression must leave open
_MOST_ROWS = 1 << 14  # maximum number of rows that the regression is fitted to
_STANDS_OUT = 5  # times as many rows with no change as with any other change: more than a lattice or rounding explains


@dataclass(frozen=True)
class Held:
    """A column of the next observation that is stored as its change."""

    column: int
    low: float
    """Lowest value of the column itself, before or after a step."""
    high: float
    """Highest value of the column itself."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Held:
        """Read it from JSON. `kinds` are the kinds of each field's columns."""
        found: Held = checked(entry, cls, "layout.held")
        finite((found.low, found.high), "layout.held")
        kind = by_column(kinds["next_observation"]).get(found.column)
        if not isinstance(kind, Spiked) or kind.spikes != (0.0,):
            raise FormatError(f"layout.held: expected changes with a spike at 0 in column {found.column}, got {kind}")
        return found


def with_held(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the change of a column replaces its next value, if it is often 0."""
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    elsewhere = {column for sphere in layout.spheres for column in sphere.columns}  # turns are among them
    held, patterns = list[Held](), dict[bytes, int]()
    ties = [kind.tied for kind in after.values() if isinstance(kind, Spiked) and kind.tied is not None]
    first = max(ties, default=-1) + 1
    for column, kind in after.items():
        plain = all(isinstance(each, (Continuous, Bounded)) for each in (kind, before[column]))
        if not plain or column in elsewhere or rows.next_observation.dtype.kind != "f":
            continue
        stays = rows.observation[:, column] == rows.next_observation[:, column]
        if not _FEWEST_STAY <= stays.mean() <= 1 - _FEWEST_MOVE:
            continue
        here, there = (side[:, column].astype(np.float64) for side in (rows.observation, rows.next_observation))
        moves = (there - here)[~stays]
        if not _stands_out(stays, moves) or _is_predicted(layout, rows.shuffled(_MOST_ROWS), column):
            continue
        number = patterns.setdefault(np.packbits(stays).tobytes(), first + len(patterns))
        spiked = Spiked(
            float(moves.min()), float(moves.max()), (0.0,), SPIKE_GAP * float(moves.std()) or 1.0, tied=number,
            usual=float(moves.mean()), by_flag=True,
        )  # fmt: skip
        after[column] = spiked
        held.append(Held(column, float(min(here.min(), there.min())), float(max(here.max(), there.max()))))
    return replace(layout, next_observation=tuple(after.values()), held=tuple(held)) if held else layout


def _stands_out(stays: NDArray[np.bool_], moves: Matrix) -> bool:
    """Return whether a column stays in far more rows (N,) than it makes any of its `moves` (M,)."""
    if len(moves) < FEWEST_IN_A_SPIKE:
        return False
    _, others = np.unique(moves, return_counts=True)
    return bool(np.count_nonzero(stays) > _STANDS_OUT * others.max())


def _is_predicted(layout: Layout, rows: Transitions, column: int) -> bool:
    """Return whether a linear regression on observation and action explains how much a column changes, where it does.

    Then the regression of next values knows which ones stay too: the height of a body that has landed and has no speed.
    """
    moves = rows[rows.observation[:, column] != rows.next_observation[:, column]]
    here, there = (side[:, column].astype(np.float64) for side in (moves.observation, moves.next_observation))
    change, given = there - here, layout.pack(moves)[:, layout.given_columns]
    units = Units.of(given)
    if units is None or len(change) < ROWS_PER_WEIGHT * (given.shape[1] + 1):
        return False
    lines = Straight((given - units.mean) / units.std)
    return bool((change - lines(*lines.fit(change))).std() < _OPEN * change.std())


def put_changes(layout: Layout, matrix: Matrix, sources: Mapping[str, Array]) -> None:
    """Write the encoded change of each held column into `matrix` (N, D). `sources` are the fields of the rows."""
    kinds: Any = by_column(layout.next_observation)
    for one in layout.held:
        before, after = (sources[field][:, one.column].astype(np.float64) for field in PAIR)
        kind, start = kinds[one.column], layout.next_columns[one.column]
        matrix[:, start : start + kind.matrix_width] = kind.encode((after - before)[:, None])


def put_held(held: Sequence[Held], fields: Mapping[str, Tensor]) -> None:
    """Replace the change of each held column of the next observation by the value after the step, in place."""
    before, after = fields["observation"], fields["next_observation"]
    for one in held:
        here, change = before[:, one.column], after[:, one.column]
        moved = (here.double() + change.double()).clamp(one.low, one.high).to(after.dtype)
        after[:, one.column] = torch.where(change == 0, here, moved)
