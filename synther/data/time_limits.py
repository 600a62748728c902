"""Terminals that look like a time limit."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from synther.data.transitions import Transitions

_log = logging.getLogger(__name__)

_FEWEST = 5
_SHARE = 0.8


def time_limit_of(rows: Transitions) -> int | None:
    """The number of steps after which episodes seem to be cut by a time limit that is marked as a terminal.

    It is the longest distance between two terminals, if at least 80 % of all distances are equal to it. None where
    there are fewer than 5 terminals, every row is one, or the rows have timeouts.
    """
    if rows.timeout is not None and rows.timeout.any():
        return None
    gaps = np.diff(np.flatnonzero(rows.terminal))
    if len(gaps) + 1 < _FEWEST:
        return None
    longest = int(gaps.max())
    return longest if longest > 1 and np.mean(gaps == longest) >= _SHARE else None


def warn_of_time_limit(rows: Transitions) -> None:
    """Log a warning about terminals that look like a time limit, once for data of the same kind."""
    if isinstance(rows, Transitions) and (limit := time_limit_of(rows)) is not None:
        _warn(limit, rows.env_id, rows.observation.shape[1])


@cache
def _warn(limit: int, env_id: str | None, columns: int) -> None:
    _log.warning(
        "nearly all terminals%s come every %d rows, and none later: they look like a time limit of %d steps. A time "
        "limit is not a terminal state: agents and generators would learn that states are terminal which are not. If "
        "episodes are cut there, mark these rows in `timeouts` instead of `terminals`; `dones` may stay as they are "
        "when `timeouts` are given beside them",
        f" of {env_id!r}" if env_id else "",
        limit,
        limit,
    )
