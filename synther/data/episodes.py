"""Which rows belong to the same episode, and what n steps of an episode give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.errors import DataError
from synther.n_step import check_n_step, windows

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


def episode_spans(rows: Transitions) -> Iterator[slice]:
    """The episodes of `rows`. Within each, every row must start in the state in which the row before ended."""
    stops = np.flatnonzero(np.append(episode_ends(rows)[:-1], True)) + 1
    broken = ~_continues(rows)
    broken[stops[:-1] - 1] = False
    if broken.any():
        row = int(np.argmax(broken))
        raise DataError(f"row {row} ends in another state than row {row + 1} starts in: expected whole episodes")
    yield from (slice(start, stop) for start, stop in pairwise([0, *stops.tolist()]))


def n_step_rows(rows: Transitions, n: int, discount: float) -> Transitions:
    """The n-step transitions of `rows`, for targets that bootstrap with `discount ** n`.

    Row t becomes (s_t, a_t, sum_k discount^k r_(t+k), s_(t+n), terminal): terminal if one of the n steps is. A time
    limit or a gap within the n steps leaves a row out; a terminal does not, because nothing is bootstrapped there.
    """
    check_n_step(n)
    if n == 1:
        return rows
    ids = episode_ids(rows)
    if ids is None:
        raise DataError(
            f"n-step rows (n_step {n}) need rows in the order of their episodes, but here fewer than half of the rows "
            "continue in the row after them: use data that is neither shuffled nor a random fraction, or n_step 1"
        )
    found = windows(np.append(np.diff(ids) > 0, True), rows.terminal, rows.reward, n, discount)
    if not len(found.first):
        longest = int(np.bincount(ids).max())
        raise DataError(f"no episode has n_step {n} steps, the longest has {longest}: lower n_step")
    return replace(
        rows[found.first],
        reward=found.reward.astype(rows.reward.dtype if rows.reward.dtype.kind == "f" else np.float64),
        next_observation=rows.next_observation[found.last],
        terminal=rows.terminal[found.last],
        timeout=None,  # the row after such a row is not the next of its episode
    )


def _continues(rows: Transitions) -> NDArray[np.bool_]:
    """Whether the next observation of each row but the last is the observation of the row after it. (N - 1,)"""
    following: NDArray[Any] = rows.next_observation[:-1]
    present: NDArray[Any] = rows.observation[1:]
    same = np.empty(len(following), bool)
    for start in range(0, len(following), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        same[part] = (following[part] == present[part]).all(axis=1)
    return same
