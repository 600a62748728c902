"""A world of few states and actions, as the table of its rows.

Where every row comes again and again, how often each came is the best estimate there is of how often it will: no
impossible transition, and every probability as in the data. No network can do better there, and a small one does worse.
So rows of such a world are drawn from the table.

So are rows whose observations are pictures of symbols, if nearly all pictures have been seen, even where few rows come
twice: a network makes one symbol after the other, and nearly none of its pictures exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.kinds import Binary, Categorical, Codebook, Constant, Derived, OneHot, as_keys
from synther.data.layout import Layout
from synther.data.transitions import Transitions

Array = NDArray[Any]
Matrix = NDArray[np.float64]

LARGEST = 1 << 16
"""Different rows up to which a table is made."""
REPEATS = 4
"""How often each of them comes, on average."""
PICTURE = 8
"""Columns, at least, in which the observations of a table vary whose rows do not come so often,"""
UNSEEN = 0.1
"""and share of its observations, at most, that come once. By Good and Turing's estimate, as many of those to come are
not among them."""

_FINITE = (Constant, Binary, Categorical, OneHot, Codebook, Derived)  # the last follow from the others


@dataclass(frozen=True, eq=False)
class RowTable:
    """The different rows of the data and how often each came."""

    rows: Matrix
    """All fields of a row side by side. (M, W)"""
    count: NDArray[np.int64]

    @classmethod
    def fit(cls, rows: Transitions, layout: Layout) -> RowTable | None:
        """Of `rows`; None where states or actions are numbers, or too many rows are the only ones of their kind."""
        if not all(isinstance(kind, _FINITE) for kind in (*layout.observation, *layout.action)):
            return None
        whole = np.concatenate(
            [array.reshape(len(rows), -1) for array in layout.columns_from(rows).values()], axis=1, dtype=np.float64
        )
        _, first, count = np.unique(as_keys(whole), return_index=True, return_counts=True)
        if len(first) > LARGEST or (len(first) * REPEATS > len(rows) and not _are_known_pictures(rows)):
            return None
        return cls(whole[first], count.astype(np.int64))

    @cached_property
    def _total(self) -> NDArray[np.int64]:
        return np.cumsum(self.count)

    def draw(self, count: int, layout: Layout, random: np.random.Generator) -> Transitions:
        """`count` rows, each as likely as it was frequent."""
        tickets = random.integers(int(self._total[-1]), size=count)
        return layout.rows_from_columns(self.rows[np.searchsorted(self._total, tickets, side="right")])

    def arrays(self) -> dict[str, Array]:
        return {"rows": self.rows, "count": self.count}


def _are_known_pictures(rows: Transitions) -> bool:
    pictures = rows.observation.reshape(len(rows), -1).astype(np.float64)
    if np.count_nonzero((pictures != pictures[0]).any(0)) < PICTURE:
        return False
    _, count = np.unique(as_keys(pictures), return_counts=True)
    return int(np.count_nonzero(count == 1)) <= UNSEEN * len(rows)
