"""Which rows belong to the same episode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions

_CHUNK_ROWS = 1 << 16
_LINKED = 0.5
"""Share of the rows inside episodes that must link to the row after them. Shuffled rows link almost nowhere."""


def episode_ids(rows: Transitions) -> NDArray[np.int64] | None:
    """The episode number of every row (N,), counted from 0, or None where the episodes are not known.

    Row i and row i + 1 belong to the same episode if row i is neither a terminal nor a timeout and its
    next_observation equals the observation of row i + 1. Rows are taken as shuffled, and their episodes as not known,
    if less than half of the rows without an end mark link to the row after them.
    """
    ends = episode_ends(rows)[:-1]
    linked = ~ends & _continues(rows)
    inside = np.count_nonzero(~ends)
    if np.count_nonzero(linked) < _LINKED * inside:
        return None
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(~linked, dtype=np.int64)])


def episode_ends(rows: Transitions) -> NDArray[np.bool_]:
    """Which rows are marked as the last of an episode: terminals and timeouts. (N,)"""
    ends: NDArray[np.bool_] = rows.terminal if rows.timeout is None else rows.terminal | rows.timeout
    return ends


def _continues(rows: Transitions) -> NDArray[np.bool_]:
    """Whether the next observation of each row but the last is the observation of the row after it. (N - 1,)"""
    following: NDArray[Any] = rows.next_observation[:-1]
    present: NDArray[Any] = rows.observation[1:]
    same = np.empty(len(following), bool)
    for start in range(0, len(following), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        same[part] = (following[part] == present[part]).all(axis=1)
    return same
