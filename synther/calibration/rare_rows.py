"""Rare rows: the network is fitted on them several times, and fewer of the generated ones are kept.

Rare are rows with a payout, a reward that is far from all others. For example, one row in seventy has a reward fifty
times as large as the others. Rare are also rows in which a column moves that stays as it is in nearly all others, such
as the place of an object that a robot has to push. This is too rare for a network to learn where such rows occur and
what they look like. So they are repeated `times` times in the fit. The network then generates them too often by this
factor, which importance weights of about 1 / `times` correct.

Amounts of sparse rewards (data/sparse_rewards.py) are payouts too. Generated rows then have their real share even if
they are not repeated.

NOTE[paper]: the reference fits all rows alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.data.layout import Layout
from synther.data.numbers import Continuous
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.schema import checked

Array = NDArray[Any]

FAR = 5.0
"""A payout is this many interquartile ranges above the upper or below the lower quartile of the rewards. Normally
distributed rewards have none."""
RAREST = 0.05
"""If more than this share of the rows is so far away, these are not payouts but ordinary rewards of another kind."""
FEWEST = 50
"""Minimum number of payouts, or of rows in which a column moves, to learn where they occur."""

_CHUNK = 1 << 16  # rows that are read at a time
_SEEN = 0.08  # target share of rare rows among the rows that the network is fitted on
_MOST_TIMES = 8  # maximum number of repetitions, because a row that is repeated more often would be memorised
_MOST_WRONG = 2.0  # a rate of rare rows that is further off than this factor is corrected only by this factor


class Usual(NamedTuple):
    """The range of usual rewards, and their median. Rewards outside the range are payouts."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, reward: Array) -> Usual | None:
        """Return the range of these real rewards (N,), or None if there are no payouts, or too few to learn from."""
        low, middle, high = np.quantile(reward.astype(np.float64), [0.25, 0.5, 0.75]).tolist()
        found = cls(low - FAR * (high - low), middle, high + FAR * (high - low))
        count = np.count_nonzero(found.exceeded(reward))
        return found if low < high and FEWEST <= count <= RAREST * len(reward) else None

    def exceeded(self, reward: Array) -> NDArray[np.bool_]:
        """Return which rewards are payouts. (N,)"""
        return np.asarray((reward < self.low) | (reward > self.high))

    def beyond(self, reward: Array) -> Array:
        """Return payouts minus the median reward, and 0 for all other rewards. (N,)"""
        return np.where(self.exceeded(reward), reward.astype(np.float64) - self.middle, 0.0)


@dataclass(frozen=True)
class RareRows:
    """Which rows are rare, and how often they are repeated in a fit."""

    low: float
    high: float
    """Rows with a reward below `low` or above `high` are rare."""
    times: int
    """How many times a rare row takes part."""
    share: float
    """Share of the real rows that are rare."""
    rates: tuple[float, ...]
    """Share of set flags among the rows that the network is fitted on, with repetitions, for each flag of the
    layout."""
    moves: tuple[int, ...] = ()
    """Rows in which one of these observation columns moves are rare."""

    @classmethod
    def find(cls, rows: Transitions, layout: Layout) -> RareRows | None:
        """Return how often to repeat rare rows. Return None if there are none, or if the network does not generate what
        is rare about them.

        Special rewards of terminal rows are left out (termination.py and end_rewards.py handle these).
        """
        usual = Usual(-math.inf, 0.0, math.inf)
        if layout.sparse is not None:
            usual = Usual(*(layout.sparse.usual,) * 3)
        elif isinstance(layout.reward[0], Continuous) and not layout.pays_at_end:
            usual = Usual.of(rows.reward) or usual
        held = [one.column for one in layout.held if one.flag is None]
        moves = [column for column in held if FEWEST <= np.count_nonzero(_moves(rows, column)) <= RAREST * len(rows)]
        found = cls(usual.low, usual.high, 1, 1.0, (), tuple(moves))
        share = float(found.among(rows).mean())
        times = max(1, min(round(_SEEN / share), _MOST_TIMES)) if share else 1
        if times == 1 and layout.sparse is None:
            return None
        found, set_flags = replace(found, times=times, share=share), np.zeros(len(layout.flag_names))
        for chunk in rows.chunks(_CHUNK):
            set_flags += found.repeats(chunk) @ (layout.flags(layout.pack(chunk)) > np.array(layout.thresholds))
        return replace(found, rates=tuple((set_flags / found.repeats(rows).sum()).tolist()))

    def among(self, rows: Transitions) -> NDArray[np.bool_]:
        """Return which rows are rare. (N,)"""
        found = Usual(self.low, 0.0, self.high).exceeded(rows.reward)
        for column in self.moves:
            found |= _moves(rows, column)
        return found

    def repeats(self, rows: Transitions) -> NDArray[np.int64]:
        """Return how many times each row takes part in the fit. (N,)"""
        return np.where(self.among(rows), self.times, 1)

    @property
    def seen(self) -> float:
        """Share of rare rows among the rows that the network is fitted on, with repetitions."""
        return self.share * self.times / (1 + self.share * (self.times - 1))

    def odds(self, rows: Transitions, weight: NDArray[np.float64] | None = None) -> float:
        """Return the importance weight of a rare row, relative to other rows, so that rare rows have their real share.

        It is 1 / `times` for a perfect network. For this one it is measured on the generated `rows`. `weight` (N,) are
        the importance weights that these rows already have.
        """
        generated = float(np.average(self.among(rows), weights=weight))
        if not 0 < generated < 1:
            return 1 / self.times
        odds = self.share * (1 - generated) / (generated * (1 - self.share))
        return float(np.clip(odds, 1 / (_MOST_WRONG * self.times), _MOST_WRONG / self.times))

    def weights(self, rows: Transitions, odds: float | None = None) -> NDArray[np.float64]:
        """Return the importance weight of each generated row (N,).

        With `odds`, rare rows have this weight and others have 1. Without, rare rows have the weight 1 / `times`
        relative to other rows, as for a perfect network, and all weights are scaled to an average of 1.
        """
        kept = 1 / self.times if odds is None else odds
        weight = np.where(self.among(rows), kept, 1.0)
        return weight * (1 + self.share * (self.times - 1)) if odds is None else weight

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> RareRows:
        found: RareRows = checked(entry, cls, "rare")
        if not found.low <= found.high or found.times < 1 or not 0 < found.share < 1 or min(found.moves, default=0) < 0:
            raise FormatError(
                f"rare: expected low <= high, times of at least 1, a share between 0 and 1 and numbers of columns, got "
                f"{entry}"
            )
        return found


def _moves(rows: Transitions, column: int) -> NDArray[np.bool_]:
    """Return in which rows a column changes. (N,)"""
    return np.asarray(rows.observation[:, column] != rows.next_observation[:, column])
