"""`RowTable`: draws rows of a small discrete world, such as FrozenLake, from a table of its different rows.

If every row occurs again and again in the data, its frequency is the best estimate of its probability. The table
generates no impossible transition, and every probability is as in the data. No network is better, and a small one is
worse. So the rows are drawn from the table instead.

Rows with pictures of symbols as observations are drawn from a table too, if nearly all pictures occur more than once,
even if most rows occur only once. A network generates one symbol after the other, and nearly none of its pictures
exist.
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
"""Maximum number of different rows in a table."""
REPEATS = 4
"""Each different row must occur at least this many times on average, or else the observations must be pictures."""
PICTURE = 8
"""Observations count as pictures if at least this many of their columns vary."""
UNSEEN = 0.1
"""Maximum share of rows with a picture that occurs only once. By the Good-Turing estimate, the same share of future
pictures is not in the table."""

_FINITE = (Constant, Binary, Categorical, OneHot, Codebook, Derived)  # Derived columns are computed from the others


@dataclass(frozen=True, eq=False)
class RowTable:
    """The different rows of the data, and how often each occurs."""

    rows: Matrix
    """All fields of the M different rows side by side. (M, W)"""
    count: NDArray[np.int64]
    """How often each row occurs. (M,)"""

    @classmethod
    def fit(cls, rows: Transitions, layout: Layout) -> RowTable | None:
        """Count the different rows. Return None if a state or action column holds numbers, or if too many rows occur
        only once."""
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
        """Draw `count` rows with replacement, with probabilities proportional to their frequency in the data."""
        places = random.integers(int(self._total[-1]), size=count)
        return layout.rows_from_columns(self.rows[np.searchsorted(self._total, places, side="right")])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a model file stores."""
        return {"rows": self.rows, "count": self.count}


def _are_known_pictures(rows: Transitions) -> bool:
    """Return whether observations are pictures, and nearly all of them occur more than once."""
    pictures = rows.observation.reshape(len(rows), -1).astype(np.float64)
    if np.count_nonzero((pictures != pictures[0]).any(0)) < PICTURE:
        return False
    _, count = np.unique(as_keys(pictures), return_counts=True)
    return int(np.count_nonzero(count == 1)) <= UNSEEN * len(rows)
