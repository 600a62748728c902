"""Finds the episodes of rows, and computes from them returns, n-step rows, and the next action of each row."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.n_step import check_n_step, windows

log = logging.getLogger(__name__)

_CHUNK_ROWS = 1 << 16
_LEAST_LINKED = 0.5
"""Among rows without an end mark, at least this share must continue in the row after them. Shuffled rows hardly ever
do."""

_FEWEST_HELD_OUT = 5  # whole episodes are held out only if this gives at least so many episodes


def episode_ids(rows: Transitions) -> NDArray[np.int64] | None:
    """Return the episode number of every row (N,), counted from 0, or None if the episodes are unknown.

    Row i and row i + 1 belong to the same episode if row i is neither a terminal nor a timeout and its
    next_observation equals the observation of row i + 1. If this equality holds for less than half of the rows without
    an end mark, the rows are considered shuffled, and their episodes are unknown.
    """
    ends = episode_ends(rows)[:-1]
    linked = ~ends & _continues(rows)
    inside = np.count_nonzero(~ends)
    if np.count_nonzero(linked) < _LEAST_LINKED * inside:
        return None
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(~linked, dtype=np.int64)])


def episode_ends(rows: Transitions) -> NDArray[np.bool_]:
    """Return which rows are marked as the last of an episode: terminals and timeouts. (N,)"""
    ends: NDArray[np.bool_] = rows.terminal if rows.timeout is None else rows.terminal | rows.timeout
    return ends


def episode_spans(rows: Transitions) -> Iterator[slice]:
    """Yield the slice of each episode of `rows`. Inside an episode, the observation of each row must be the next
    observation of the row before."""
    stops = np.flatnonzero(np.append(episode_ends(rows)[:-1], True)) + 1
    broken = ~_continues(rows)
    broken[stops[:-1] - 1] = False
    if broken.any():
        row = int(np.argmax(broken))
        raise DataError(
            f"the next_observation of row {row} is not the observation of row {row + 1}: expected whole episodes"
        )
    yield from (slice(start, stop) for start, stop in pairwise([0, *stops.tolist()]))


def returns(rows: Transitions) -> NDArray[np.float64]:
    """Compute the returns of the episodes that end within the rows, in order. The rewards are not discounted."""
    return np.diff(np.cumsum(rows.reward, dtype=np.float64)[_last_rows(rows)], prepend=0.0)


def whole_returns(rows: Transitions, limit: int | None = None) -> NDArray[np.float64]:
    """Compute the returns of the episodes that terminated or have at least `limit` steps (None: the length of the
    longest episode).

    This excludes episodes that were cut by the end of the data or of a segment of a run.
    """
    ends = _last_rows(rows)
    lengths = np.diff(ends, prepend=-1)
    whole = rows.terminal[ends] | (lengths >= (limit or lengths.max(initial=0)))
    return np.asarray(returns(rows)[whole])


def _last_rows(rows: Transitions) -> NDArray[np.intp]:
    """Return the numbers of the last rows of episodes."""
    if rows.timeout is None:
        raise DataError("the data has no `timeouts` field, so episode returns cannot be computed")
    return np.flatnonzero(episode_ends(rows))


def hold_out(rows: Transitions, share: float, seed: int) -> tuple[Transitions, Transitions | None]:
    """Split off a random share of the rows. Return the remaining rows and the split-off rows, which are None if `share`
    is 0.

    Whole episodes are split off if there are enough of them, because rows of the same episode are similar.
    """
    if share == 0:
        return rows, None
    ids = episode_ids(rows)
    if ids is None or ids[-1] + 1 < _FEWEST_HELD_OUT / share:
        ids = np.arange(len(rows))
    order = np.random.default_rng([17, seed]).permutation(ids[-1] + 1)
    lengths = np.bincount(ids)[order]
    chosen = order[np.cumsum(lengths) - lengths < share * len(rows)]
    held_out = np.isin(ids, chosen)
    if held_out.all():
        raise DataError(f"holding out {share:g} of {len(rows)} rows leaves no row to learn from: hold out fewer rows")
    return rows[~held_out], rows[held_out]


def n_step_rows(rows: Transitions, n: int, discount: float = 0.99, *, whole: bool = False) -> Transitions:
    """Return the n-step transitions of `rows`.

    Row t becomes (s_t, a_t, sum_i discount^i r_(t+i), s_(t+k), terminal). The new extra column `discount` is
    discount^k, by which agents multiply the value of s_(t+k). k is n, or less if the episode ends or is cut earlier.
    The row is terminal if one of its k steps is; targets then do not bootstrap. An extra column `next_action` is taken
    from the k-th step, other extra columns from row t.

    With `whole`, rows that are cut short by a time limit or a gap are left out, and there is no column `discount`,
    because the targets of all remaining rows bootstrap with discount^n.
    """
    check_n_step(n)
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount must be between 0 and 1, got {discount}")
    if whole and n == 1:
        return rows
    if "discount" in rows.extra:
        raise DataError("these rows have an extra column discount, so they are n-step rows already")
    ids = np.arange(len(rows)) if n == 1 else _known_ids(rows, f"n-step rows (n_step {n})", "n_step 1")
    over = np.append(np.diff(ids) > 0, True)
    found = windows(over, rows.terminal, rows.reward, n, discount, shortened=not whole)
    if not len(found.first):
        longest = int(np.bincount(ids).max())
        raise DataError(f"no episode has n_step {n} steps, the longest has {longest}: lower n_step")
    real = rows.reward.dtype if rows.reward.dtype.kind == "f" else np.dtype(np.float64)
    made = rows[found.first]
    extra = dict(made.extra)
    if "next_action" in extra:
        extra["next_action"] = rows.extra["next_action"][found.last]
    if not whole:
        extra["discount"] = (float(discount) ** (found.last - found.first + 1)).astype(real)
    return replace(
        made,
        reward=found.reward.astype(real),
        next_observation=rows.next_observation[found.last],
        terminal=rows.terminal[found.last],
        timeout=None if n > 1 else rows.timeout,  # consecutive n-step rows do not continue each other
        extra=extra,
    )


def with_next_actions(rows: Transitions) -> Transitions:
    """Return `rows` with the extra column `next_action`, which is the action of the next row of the same episode.

    Rows after which an episode is cut have no next action and are left out. Terminal rows are kept, with their own
    action as next action. It is never used, because targets do not bootstrap there. For n-step rows, call this function
    first and then `n_step_rows`.
    """
    if "discount" in rows.extra:
        raise DataError(
            "the next actions of n-step rows are unknown: call with_next_actions before n_step_rows, not after it"
        )
    ids = _known_ids(rows, "next actions", "no next actions")
    goes_on = np.append(np.diff(ids) == 0, False)
    kept = goes_on | rows.terminal
    if not kept.any():
        raise DataError("no row has a next action: expected episodes of at least two steps")
    next_rows = np.where(goes_on, np.minimum(np.arange(len(rows)) + 1, len(rows) - 1), np.arange(len(rows)))
    dropped = len(rows) - int(np.count_nonzero(kept))
    if dropped:
        log.info("next actions: left out %d of %d rows, after which an episode is cut", dropped, len(rows))
    timeout = rows.timeout
    if timeout is not None:  # the row before a row that is left out is now the last of its episode
        timeout = np.append(goes_on[:-1] & ~kept[1:], False)[kept]
    made = rows[kept]
    return replace(made, timeout=timeout, extra={**made.extra, "next_action": rows.action[next_rows[kept]]})


def prepared(rows: Transitions, n_step: int = 1, next_actions: bool = False, discount: float = 0.99) -> Transitions:
    """Return the rows that a generator learns: with next actions if `next_actions`, and as n-step rows if `n_step` is
    above 1."""
    check_n_step(n_step)
    rows = with_next_actions(rows) if next_actions else rows
    return rows if n_step == 1 else n_step_rows(rows, n_step, discount)


def _known_ids(rows: Transitions, purpose: str, advice: str) -> NDArray[np.int64]:
    """Return the episode numbers, or raise an error that says what needs them and what to do."""
    ids = episode_ids(rows)
    if ids is None:
        raise DataError(
            f"{purpose} need rows in the order of their episodes, but fewer than half of these rows continue in the "
            f"row after them: use data that is neither shuffled nor a random fraction, or {advice}"
        )
    return ids


def _continues(rows: Transitions) -> NDArray[np.bool_]:
    """Return for each row but the last whether its next observation is the observation of the row after it. (N - 1,)"""
    ends: NDArray[Any] = rows.next_observation[:-1]
    starts: NDArray[Any] = rows.observation[1:]
    same = np.empty(len(ends), bool)
    for start in range(0, len(ends), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        same[part] = (ends[part] == starts[part]).all(axis=1)
    return same
