"""Rewards of terminal rows that are one of a few numbers, whatever came before.

A goal pays 10 in place of minus the distance from it; landings pay 100 and crashes -100. Beside such numbers in a few
rows, what is paid in all the others would be lost. So the matrix has an ordinary reward in place of each: a random one,
from a part of them that is as large as the number is frequent among terminal rows. A network that has learned nothing
about these rows then still makes every number as often as it should.

NOTE[paper]: the reference generates all rewards alike.
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

_MOST, _FEWEST = 4, 5  # numbers, and rows of each
_RANKS = 257
_SPREADING = 17  # of random numbers


@dataclass(frozen=True)
class EndRewards:
    """What terminal rows are paid, and what other rows are."""

    values: tuple[float, ...]
    """In increasing order."""
    shares: tuple[float, ...]
    """For each value, the share of terminal rows that are paid it or less."""
    ordinary: tuple[float, ...]
    """Rewards of other rows at ranks from 0 to 1, equally spaced."""

    @classmethod
    def learn(cls, rows: Transitions) -> EndRewards | None:
        """None where terminal rows are paid more than a few numbers."""
        paid, others = rows.reward[rows.terminal].astype(np.float64), rows.reward[~rows.terminal].astype(np.float64)
        values, count = np.unique(paid, return_counts=True)
        if not 0 < len(values) <= _MOST or count.min() < _FEWEST or not len(others):
            return None
        shares, ordinary = (count / len(paid)).cumsum().tolist(), np.quantile(others, np.linspace(0, 1, _RANKS))
        return cls(tuple(values.tolist()), (*shares[:-1], 1.0), tuple(ordinary.tolist()))

    def spread(self, paid: Array) -> NDArray[np.float64]:
        """Ordinary rewards in place of what terminal rows are paid (N,)."""
        values = np.array(self.values)
        which = np.searchsorted((values[1:] + values[:-1]) / 2, paid)
        ends = np.array([0.0, *self.shares])
        rank = np.random.default_rng(_SPREADING).uniform(ends[which], ends[which + 1])
        return np.interp(rank, np.linspace(0, 1, len(self.ordinary)), self.ordinary)

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """The way back, for any rewards, on a device."""
        cuts = np.interp(self.shares[:-1], np.linspace(0, 1, len(self.ordinary)), self.ordinary)
        cut, value = (torch.tensor(each, dtype=torch.float64, device=device) for each in (cuts, self.values))
        return lambda reward: value[torch.bucketize(reward.double(), cut)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any) -> EndRewards:
        found: EndRewards = checked(entry, cls, "layout.at_end")
        finite((*found.values, *found.shares, *found.ordinary), "layout.at_end")
        rising = all((np.diff(each) >= 0).all() for each in (found.values, (0.0, *found.shares), found.ordinary))
        if not rising or not len(found.values) == len(found.shares) > 0 or found.shares[-1] != 1 or not found.ordinary:
            raise FormatError("layout.at_end: expected numbers in increasing order, and shares up to 1")
        return found
