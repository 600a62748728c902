"""Model rewards that are the same in many rows and vary in the others, such as 0 unless something is sold.

The matrix holds an amount, and a flag that tells whether a row has the usual reward instead (see `Spiked`). In rows
with the usual reward, the matrix holds an amount that they might have had: the prediction of a linear regression plus a
random residual. So the network learns how amounts are distributed, and separately which rows have one. This is a hurdle
model (Cragg 1971).

If the matrix held the rewards themselves, the amounts would be at the far end of a column that is constant in most
rows, and a small network would spread them up to 2.5 times too far. A large network needs no such help. Amounts in all
rows cost it precision elsewhere: beside the limit of a clipped column it made 8 % too many values instead of 3 % too
few (`best`, `benchmarks/laws.py`).

NOTE[paper]: the reference treats such rewards like any other number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from synther.data.kind import Array, Kind, Matrix
from synther.data.lines import Line
from synther.data.numbers import Spiked
from synther.data.spikes import SPIKE_GAP
from synther.data.transitions import PAIR, Transitions
from synther.errors import FormatError
from synther.schema import checked

if TYPE_CHECKING:
    from synther.data.end_rewards import EndRewards
    from synther.data.layout import Layout

_FEWEST_USUAL = 0.1  # smallest share of rows with the usual reward
_FEWEST = 50  # minimum number of rows with another reward
_MOST_ROWS = 1 << 14  # maximum number of rows that the regression is fitted to
_CHOOSING = 29  # seed of the choice of these rows
_FIELDS = ("observation", "action", PAIR[1])


@dataclass(frozen=True)
class SparseReward:
    """A reward that is the same in many rows, and an amount in the others."""

    usual: float
    """The reward of rows without an amount."""
    line: Line
    """The amount, given observation, action and next observation."""

    def put_amounts(self, layout: Layout, matrix: Matrix, reward: Array, terminal: Array) -> None:
        """Draw amounts for the rows with the usual `reward` (N,), and write them into `matrix` (N, D).

        If all `terminal` rows (N,) have the same reward, it is restored after decoding. They are like rows with the
        usual reward.
        """
        kind: Any = layout.reward[0]
        column, flag = layout.columns_of("reward")
        usual = reward == reward.dtype.type(self.usual)
        if layout.at_end is not None:
            usual |= terminal
            matrix[usual, flag] = 1.0
        amounts = self.line.drawn(matrix[usual][:, _inputs(layout)], layout.width)
        matrix[usual, column] = amounts.clip(kind.low, kind.high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> SparseReward:
        """Read it from JSON. `kinds` are the kinds of each field's columns."""
        found: SparseReward = checked(entry, cls, "layout.sparse")
        width = sum(kind.matrix_width for field in _FIELDS for kind in kinds[field])
        found.line.check(width, "layout.sparse", "observation, action and next observation")
        (kind,) = kinds["reward"]
        if not isinstance(kind, Spiked) or kind.spikes != (found.usual,) or not kind.by_flag:
            raise FormatError(f"layout.sparse: expected rewards with a spike at {found.usual:g}, got {kind}")
        return found


def with_sparse_reward(layout: Layout, rows: Transitions, at_end: EndRewards | None) -> Layout | None:
    """Return the layout in which the reward is an amount and a flag. None if too few rows have the same reward.

    With `at_end`, all terminal rows have the same reward. Then the amounts are those of the other rows.
    """
    (kind,) = layout.reward
    if not isinstance(kind, Spiked) or len(kind.spikes) != 1:
        return None
    (usual,) = kind.spikes
    has_amount = rows.reward != rows.reward.dtype.type(usual)
    others = np.flatnonzero(has_amount if at_end is None else has_amount & ~rows.terminal)
    if not _FEWEST <= len(others) <= (1 - _FEWEST_USUAL) * len(rows):
        return None
    amounts = rows.reward[others].astype(np.float64)
    low, high, gap = float(amounts.min()), float(amounts.max()), SPIKE_GAP * float(amounts.std())
    if low == high:
        return None
    if len(others) > _MOST_ROWS:
        others = np.sort(np.random.default_rng(_CHOOSING).choice(others, _MOST_ROWS, replace=False))
    some = rows[others]
    x, y = layout.pack(some)[:, _inputs(layout)], some.reward.astype(np.float64)
    line = Line.fit(x, y) or Line.flat(x.shape[1], y)
    amount = Spiked(low, high, (usual,), gap, usual=float(amounts.mean()), by_flag=True)
    return replace(layout, reward=(amount,), sparse=SparseReward(usual, line), at_end=at_end)


def _inputs(layout: Layout) -> list[int]:
    return [column for field in _FIELDS for column in layout.columns_of(field)]
