"""Outcomes of a world with few states and actions, counted.

Where every (state, action) comes again and again, how often each outcome followed it is the best estimate there is of
how often it will. So rows of such a world take reward, next observation and terminal from the table of what followed
in the real rows: no impossible transition, and every probability as in the data. The network decides which states and
actions come. What it makes of a state and an action that no real row has, nobody can tell from the rows: such rows are
left out, and others are drawn in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.kinds import Binary, Categorical, Codebook, Constant, Kind, OneHot, as_keys
from synther.data.layout import Layout
from synther.data.transitions import Transitions

Array = NDArray[Any]
Matrix = NDArray[np.float64]

LARGEST = 1 << 16
"""Different rows up to which a table is made."""
REPEATS = 4
"""How often each of them comes, on average."""

_FINITE = (Constant, Binary, Categorical, OneHot, Codebook)


@dataclass(frozen=True, eq=False)
class OutcomeTable:
    """The different rows of the data, those of the same state and action together, and how often each came."""

    given: Matrix
    """State and action of each row. (M, G)"""
    outcome: Matrix
    """Reward, next observation and terminal. (M, K)"""
    count: NDArray[np.int64]

    @classmethod
    def fit(cls, rows: Transitions, layout: Layout) -> OutcomeTable | None:
        """Of `rows`; None where states or actions are numbers, or too many rows are the only ones of their kind."""
        finite: tuple[Kind, ...] = (*layout.observation, *layout.action)
        if not all(isinstance(kind, _FINITE) for kind in finite):
            return None
        given, outcome = _given(rows), _outcome(rows)
        whole = np.concatenate([given, outcome], axis=1)
        keys, first, count = np.unique(as_keys(whole), return_index=True, return_counts=True)
        if len(keys) > LARGEST or len(keys) * REPEATS > len(rows):
            return None
        order = np.argsort(as_keys(given[first]), kind="stable")
        return cls(given[first][order], outcome[first][order], count[order].astype(np.int64))

    @cached_property
    def _index(self) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
        """The keys of states and actions, where the rows of each begin and end, and the running total of the counts."""
        keys, start = np.unique(as_keys(self.given), return_index=True)
        bounds = np.append(start, len(self.given)).astype(np.int64)
        return keys, bounds, np.concatenate([[0], np.cumsum(self.count)]).astype(np.int64)

    def drawn(self, rows: Transitions, draw: np.random.Generator) -> Transitions:
        """As many rows with outcomes drawn from those that followed the same state and action.

        A row whose state and action nothing is known of gives way to another of `rows`, if there is one.
        """
        keys, bounds, total = self._index
        asked = as_keys(_given(rows))
        place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        known = keys[place] == asked
        if known.any() and not known.all():
            taken = np.arange(len(rows))
            taken[~known] = draw.choice(np.flatnonzero(known), int(np.count_nonzero(~known)))
            rows, place, known = rows[taken], place[taken], known[taken]
        low, high = total[bounds[place]], total[bounds[place + 1]]
        ticket = low + np.floor(draw.random(len(rows)) * (high - low)).astype(np.int64)
        outcome = self.outcome[np.searchsorted(total, ticket, side="right") - 1]
        width = rows.next_observation.reshape(len(rows), -1).shape[1]
        following = np.where(known[:, None], outcome[:, 1 : 1 + width], rows.next_observation.reshape(len(rows), -1))
        return replace(
            rows,
            reward=np.where(known, outcome[:, 0], rows.reward).astype(rows.reward.dtype),
            next_observation=following.reshape(rows.next_observation.shape).astype(rows.next_observation.dtype),
            terminal=np.where(known, outcome[:, -1] != 0, rows.terminal),
        )

    def arrays(self) -> dict[str, Array]:
        return {"given": self.given, "outcome": self.outcome, "count": self.count}


def _given(rows: Transitions) -> Matrix:
    return _columns(rows.observation, rows.action)


def _outcome(rows: Transitions) -> Matrix:
    return _columns(rows.reward, rows.next_observation, rows.terminal)


def _columns(*fields: Array) -> Matrix:
    return np.concatenate([field.reshape(len(field), -1) for field in fields], axis=1, dtype=np.float64)
