"""Model the rewards of terminal rows separately if they are one of a few numbers.

Examples: reaching a goal pays 10, while all other steps pay minus the distance. Landings pay 100 and crashes -100. Such
large numbers in a few rows would hide the differences between all other rewards. So in the matrix, each of them is
replaced by an ordinary reward, one that other rows get. It is drawn at random from a range of quantiles that is
reserved for that number, and is as wide as the number is frequent among terminal rows. So a network that has learned
nothing about these rows still generates every number with the right frequency.

NOTE[paper]: the reference generates all rewards in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.schema import checked, finite

Array = NDArray[Any]

_MOST, _FEWEST = 4, 5  # maximum number of distinct terminal rewards, and minimum number of rows with each
_RANKS = 257  # number of quantiles that describe ordinary rewards
_SPREADING = 17  # seed of the draws


@dataclass(frozen=True)
class EndRewards:
    """The distribution of rewards in terminal rows, and in other rows."""

    values: tuple[float, ...]
    """Rewards of terminal rows, in increasing order."""
    shares: tuple[float, ...]
    """For each value, the share of terminal rows with that reward or less."""
    ordinary: tuple[float, ...]
    """Quantiles of the rewards of other rows, at equally spaced levels from 0 to 1."""

    @classmethod
    def learn(cls, rows: Transitions) -> EndRewards | None:
        """Learn the distribution. Returns None if terminal rows have more than a few different rewards."""
        paid, others = rows.reward[rows.terminal].astype(np.float64), rows.reward[~rows.terminal].astype(np.float64)
        values, count = np.unique(paid, return_counts=True)
        if not 0 < len(values) <= _MOST or count.min() < _FEWEST or not len(others):
            return None
        shares, ordinary = (count / len(paid)).cumsum().tolist(), np.quantile(others, np.linspace(0, 1, _RANKS))
        return cls(tuple(values.tolist()), (*shares[:-1], 1.0), tuple(ordinary.tolist()))

    def spread(self, paid: Array) -> NDArray[np.float64]:
        """Draw an ordinary reward for each reward `paid` (N,) of a terminal row. (N,)"""
        values = np.array(self.values)
        which = np.searchsorted((values[1:] + values[:-1]) / 2, paid)
        ends = np.array([0.0, *self.shares])
        rank = np.random.default_rng(_SPREADING).uniform(ends[which], ends[which + 1])
        return np.interp(rank, np.linspace(0, 1, len(self.ordinary)), self.ordinary)

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return a function on `device` that turns ordinary rewards back into rewards of terminal rows."""
        cuts = np.interp(self.shares[:-1], np.linspace(0, 1, len(self.ordinary)), self.ordinary)
        cut, value = (torch.tensor(each, dtype=torch.float64, device=device) for each in (cuts, self.values))
        return lambda reward: value[torch.bucketize(reward.double(), cut)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any) -> EndRewards:
        """Read end rewards from JSON."""
        found: EndRewards = checked(entry, cls, "layout.at_end")
        finite((*found.values, *found.shares, *found.ordinary), "layout.at_end")
        rising = all((np.diff(each) >= 0).all() for each in (found.values, (0.0, *found.shares), found.ordinary))
        if not rising or not len(found.values) == len(found.shares) > 0 or found.shares[-1] != 1 or not found.ordinary:
            raise FormatError(
                f"layout.at_end: expected values, shares and ordinary rewards in increasing order, and one share for "
                f"each value, the last of them 1, got values {found.values} and shares {found.shares}"
            )
        return found
