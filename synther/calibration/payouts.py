"""Rare rewards (payouts): the network is fitted on them several times, and fewer of the generated ones are kept.

For example, one row in seventy has a reward fifty times as large as the others. This is too rare for a network to learn
where payouts occur and how large they are. So rows with a payout are repeated `times` times in the fit. The network
then generates payouts too often by this factor, which importance weights of about 1 / `times` correct.

Amounts of sparse rewards (data/sparse_rewards.py) are payouts too. Generated rows then have their real share even if
they are not repeated.

NOTE[paper]: the reference fits all rows alike.
"""

from __future__ import annotations

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
"""Minimum number of payouts, to learn where they occur."""

_CHUNK = 1 << 16  # rows that are read at a time
_SEEN = 0.08  # target share of payouts among the rows that the network is fitted on
_MOST_TIMES = 8  # maximum number of repetitions, because a row that is repeated more often would be memorised
_MOST_WRONG = 2.0  # a rate of payouts that is further off than this factor is corrected only by this factor


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
class Payouts:
    """How often rows with a payout are repeated in a fit."""

    low: float
    high: float
    """Rewards below `low` or above `high` are payouts."""
    times: int
    """How many times a row with a payout takes part."""
    share: float
    """Share of the real rows that have a payout."""
    rates: tuple[float, ...]
    """Share of set flags among the rows that the network is fitted on, with repetitions, for each flag of the
    layout."""

    @classmethod
    def find(cls, rows: Transitions, layout: Layout) -> Payouts | None:
        """Return how often to repeat payouts. Return None if there are none, or if the network does not generate
        rewards.

        Layouts with special rewards of terminal rows are left out (termination.py and end_rewards.py handle these).
        """
        if layout.sparse is not None:
            usual: Usual | None = Usual(*(layout.sparse.usual,) * 3)
        else:
            usual = Usual.of(rows.reward) if isinstance(layout.reward[0], Continuous) else None
        if usual is None or layout.pays_at_end:
            return None
        share = float(usual.exceeded(rows.reward).mean())
        times = max(1, min(round(_SEEN / share), _MOST_TIMES))
        if times == 1 and layout.sparse is None:
            return None
        found, set_flags = cls(usual.low, usual.high, times, share, ()), np.zeros(len(layout.flag_names))
        for chunk in rows.chunks(_CHUNK):
            set_flags += found.repeats(chunk.reward) @ (layout.flags(layout.pack(chunk)) > np.array(layout.thresholds))
        return replace(found, rates=tuple((set_flags / found.repeats(rows.reward).sum()).tolist()))

    def repeats(self, reward: Array) -> NDArray[np.int64]:
        """Return how many times each row takes part in the fit. (N,)"""
        return np.where(self.paid(reward), self.times, 1)

    def paid(self, reward: Array) -> NDArray[np.bool_]:
        """Return which rewards are payouts. (N,)"""
        return Usual(self.low, 0.0, self.high).exceeded(reward)

    @property
    def seen(self) -> float:
        """Share of payouts among the rows that the network is fitted on, with repetitions."""
        return self.share * self.times / (1 + self.share * (self.times - 1))

    def odds(self, reward: Array) -> float:
        """Return the importance weight of a row with a payout, relative to a row without one, so that payouts have
        their real share.

        It is 1 / `times` for a perfect network. For this one it is measured by the `reward` (N,) of generated rows.
        """
        generated = float(np.mean(self.paid(reward)))
        if not 0 < generated < 1:
            return 1 / self.times
        odds = self.share * (1 - generated) / (generated * (1 - self.share))
        return float(np.clip(odds, 1 / (_MOST_WRONG * self.times), _MOST_WRONG / self.times))

    def weights(self, reward: Array, odds: float | None = None) -> NDArray[np.float64]:
        """Return the importance weight of each generated row (N,).

        With `odds`, rows with a payout have this weight and others have 1. Without, payouts have the weight 1 / `times`
        relative to other rows, as for a perfect network, and all weights are scaled to an average of 1.
        """
        kept = 1 / self.times if odds is None else odds
        weight = np.where(self.paid(reward), kept, 1.0)
        return weight * (1 + self.share * (self.times - 1)) if odds is None else weight

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Payouts:
        found: Payouts = checked(entry, cls, "payouts")
        if not found.low <= found.high or found.times < 1 or not 0 < found.share < 1:
            raise FormatError(
                f"payouts: expected low <= high, times of at least 1 and a share between 0 and 1, got {entry}"
            )
        return found
