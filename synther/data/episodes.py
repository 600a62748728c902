"""Which rows belong to the same episode, and what follows from that: n-step rows, and the next action of each row."""

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
_LINKED = 0.5
"""Share of the rows inside episodes that must link to the row after them. Shuffled rows link almost nowhere."""

_FEWEST_HELD_OUT = 5  # episodes


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


def returns(rows: Transitions) -> NDArray[np.float64]:
    """Returns of the episodes that end within the rows, in order."""
    return np.diff(np.cumsum(rows.reward, dtype=np.float64)[_last_rows(rows)], prepend=0.0)


def whole_returns(rows: Transitions, limit: int | None = None) -> NDArray[np.float64]:
    """Returns of the episodes that terminated or took `limit` steps (None: as many as the longest episode).

    This leaves out episodes that were cut by the end of the data or of a segment of a run.
    """
    ends = _last_rows(rows)
    lengths = np.diff(ends, prepend=-1)
    whole = rows.terminal[ends] | (lengths >= (limit or lengths.max(initial=0)))
    return np.asarray(returns(rows)[whole])


def _last_rows(rows: Transitions) -> NDArray[np.intp]:
    if rows.timeout is None:
        raise DataError("the data has no `timeouts` field, so episode returns cannot be computed")
    return np.flatnonzero(episode_ends(rows))


def hold_out(rows: Transitions, share: float, seed: int) -> tuple[Transitions, Transitions | None]:
    """All rows but a share, and that share (None if it is 0): whole episodes where there are enough of them, because
    the rows of an episode are alike."""
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
        raise DataError(f"a share of {share:g} of {len(rows)} rows leaves none to learn from: hold out fewer")
    return rows[~held_out], rows[held_out]


def n_step_rows(rows: Transitions, n: int, discount: float = 0.99, *, whole: bool = False) -> Transitions:
    """The n-step transitions of `rows`.

    Row t becomes (s_t, a_t, sum_i discount^i r_(t+i), s_(t+k), terminal), with the extra column `discount` =
    discount^k, by which the value of s_(t+k) counts. k is n, or less where the episode ends or is cut before. The row
    is terminal if one of the k steps is; nothing is bootstrapped then. An extra column `next_action` is that after the
    k-th step; others are those of row t.

    With `whole`, rows that a time limit or a gap cuts short are left out, and there is no column `discount`: the
    targets of all rows bootstrap with discount^n.
    """
    check_n_step(n)
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount must lie in [0, 1], got {discount}")
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
        timeout=None if n > 1 else rows.timeout,  # the row after an n-step row is not the next of its episode
        extra=extra,
    )


def with_next_actions(rows: Transitions) -> Transitions:
    """`rows` with the extra column `next_action`: the action of the next row of the same episode.

    Rows that an episode is cut after have none and are left out. Terminal rows keep their own action in that place: it
    is never used, because nothing is bootstrapped there, and without them there would be no terminals. For n-step rows
    call this first, and `n_step_rows` then.
    """
    if "discount" in rows.extra:
        raise DataError("these are n-step rows, whose next actions are not known: call with_next_actions first")
    ids = _known_ids(rows, "next actions", "no next actions")
    goes_on = np.append(np.diff(ids) == 0, False)
    kept = goes_on | rows.terminal
    if not kept.any():
        raise DataError("no row has a next action: expected episodes of at least two steps")
    following = np.where(goes_on, np.minimum(np.arange(len(rows)) + 1, len(rows) - 1), np.arange(len(rows)))
    dropped = len(rows) - int(np.count_nonzero(kept))
    if dropped:
        log.info("next actions: left out %d of %d rows, after which an episode is cut", dropped, len(rows))
    timeout = rows.timeout
    if timeout is not None:  # the row before one that is left out is the last of its episode now
        timeout = np.append(goes_on[:-1] & ~kept[1:], False)[kept]
    made = rows[kept]
    return replace(made, timeout=timeout, extra={**made.extra, "next_action": rows.action[following[kept]]})


def prepared(rows: Transitions, n_step: int = 1, next_actions: bool = False, discount: float = 0.99) -> Transitions:
    """Rows as a generator is to learn them: with next actions, over `n_step` steps, or as they are."""
    check_n_step(n_step)
    rows = with_next_actions(rows) if next_actions else rows
    return rows if n_step == 1 else n_step_rows(rows, n_step, discount)


def _known_ids(rows: Transitions, purpose: str, advice: str) -> NDArray[np.int64]:
    ids = episode_ids(rows)
    if ids is None:
        raise DataError(
            f"{purpose} need rows in the order of their episodes, but here fewer than half of the rows continue in the "
            f"row after them: use data that is neither shuffled nor a random fraction, or {advice}"
        )
    return ids


def _continues(rows: Transitions) -> NDArray[np.bool_]:
    """Whether the next observation of each row but the last is the observation of the row after it. (N - 1,)"""
    following: NDArray[Any] = rows.next_observation[:-1]
    present: NDArray[Any] = rows.observation[1:]
    same = np.empty(len(following), bool)
    for start in range(0, len(following), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        same[part] = (following[part] == present[part]).all(axis=1)
    return same
