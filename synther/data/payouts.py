"""Rare rewards that are far from all usual ones: a fit sees such rows more often, and a draw keeps fewer of them.

One row in seventy that pays fifty times as much as others is too rare for a network to learn where payouts come, and
how large they are. So rows with a payout take part in the fit several times. What the network makes then has that many
times too many, and each of them is taken with so much smaller a weight (importance sampling).

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
"""Times the middle half of real rewards by which a payout is beyond this half: of normal rewards none is."""
RAREST = 0.05
"""Share of the rows up to which such rewards are payouts, and no usual rewards of another kind."""
FEWEST = 50
"""Payouts that tell where they come."""

_CHUNK = 1 << 16
_SEEN = 0.08  # share of the rows that payouts are to be for the network,
_MOST_TIMES = 8  # but each no more often than this: it would be learned by heart
_MOST_WRONG = 2.0  # times too many or too few payouts that are corrected


class Usual(NamedTuple):
    """Between which numbers real rewards usually are, and the one in their middle."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, reward: Array) -> Usual | None:
        """None where there are no payouts beyond these, or too few to learn from."""
        low, middle, high = np.quantile(reward.astype(np.float64), [0.25, 0.5, 0.75]).tolist()
        found = cls(low - FAR * (high - low), middle, high + FAR * (high - low))
        count = np.count_nonzero(found.exceeded(reward))
        return found if low < high and FEWEST <= count <= RAREST * len(reward) else None

    def exceeded(self, reward: Array) -> NDArray[np.bool_]:
        """Which rewards are payouts. (N,)"""
        return np.asarray((reward < self.low) | (reward > self.high))

    def beyond(self, reward: Array) -> Array:
        """By how much payouts are more, or less, than usual; 0 for all others. (N,)"""
        return np.where(self.exceeded(reward), reward.astype(np.float64) - self.middle, 0.0)


@dataclass(frozen=True)
class Payouts:
    """How often rows with a payout take part in a fit."""

    low: float
    high: float
    """Beyond these rewards are payouts."""
    times: int
    share: float
    """Of the real rows that have one."""
    rates: tuple[float, ...]
    """How often each flag of the layout is set in what the network sees."""

    @classmethod
    def find(cls, rows: Transitions, layout: Layout) -> Payouts | None:
        """None where there are none, or where the network does not generate rewards. What terminal rows are paid is
        learned elsewhere (termination.py, end_rewards.py)."""
        if not isinstance(layout.reward[0], Continuous) or layout.pays_at_end:
            return None
        usual = Usual.of(rows.reward)
        if usual is None:
            return None
        share = float(usual.exceeded(rows.reward).mean())
        times = min(round(_SEEN / share), _MOST_TIMES)
        if times <= 1:
            return None
        found, set_flags = cls(usual.low, usual.high, times, share, ()), np.zeros(len(layout.flag_names))
        for chunk in rows.chunks(_CHUNK):
            set_flags += found.repeats(chunk.reward) @ (layout.flags(layout.pack(chunk)) > np.array(layout.thresholds))
        return replace(found, rates=tuple((set_flags / found.repeats(rows.reward).sum()).tolist()))

    def repeats(self, reward: Array) -> NDArray[np.int64]:
        """How many times each row takes part. (N,)"""
        return np.where(Usual(self.low, 0.0, self.high).exceeded(reward), self.times, 1)

    @property
    def seen(self) -> float:
        """The share of what the network sees that has a payout."""
        return self.share * self.times / (1 + self.share * (self.times - 1))

    def odds(self, reward: Array) -> float:
        """How likely a row with a payout is to be taken, where one without always is, so that payouts have their real
        share. Of a perfect network it is one in `times`; the `reward` (N,) of generated rows shows what this one makes.
        """
        found = float(np.mean(self.repeats(reward) > 1))
        if not 0 < found < 1:
            return 1 / self.times
        odds = self.share * (1 - found) / (found * (1 - self.share))
        return float(np.clip(odds, 1 / (_MOST_WRONG * self.times), _MOST_WRONG / self.times))

    def weights(self, reward: Array, odds: float | None = None) -> NDArray[np.float64]:
        """How likely each generated row is to be taken: on average 1, of all that the network makes. Without `odds`
        as if it were perfect. (N,)"""
        kept = 1 / self.times if odds is None else odds
        weight = np.where(self.repeats(reward) > 1, kept, 1.0)
        return weight * (1 + self.share * (self.times - 1)) if odds is None else weight

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Payouts:
        found: Payouts = checked(entry, cls, "payouts")
        if not found.low < found.high or found.times < 1 or not 0 < found.share < 1:
            raise FormatError(f"payouts: expected a range of usual rewards, and how often others come, got {entry}")
        return found
