"""Warns of terminals that look like a time limit: nearly all episodes have the same length."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from synther.data.transitions import Transitions

_log = logging.getLogger(__name__)

_FEWEST = 5  # terminals that are needed
_SHARE = 0.8  # share of equally long episodes from which a time limit is assumed


def time_limit_of(rows: Transitions) -> int | None:
    """Return the number of steps after which episodes seem to be cut by a time limit that is marked as terminal.

    It is the longest distance between two terminals, if at least 80 % of all distances are equal to it. Return None if
    there are fewer than 5 terminals, if every row is terminal, or if the rows have timeouts.
    """
    if rows.timeout is not None and rows.timeout.any():
        return None
    gaps = np.diff(np.flatnonzero(rows.terminal))
    if len(gaps) + 1 < _FEWEST:
        return None
    longest = int(gaps.max())
    return longest if longest > 1 and np.mean(gaps == longest) >= _SHARE else None


def warn_of_time_limit(rows: Transitions) -> None:
    """Log a warning if terminals look like a time limit. It is logged once for the same limit, environment and number
    of columns."""
    if isinstance(rows, Transitions) and (limit := time_limit_of(rows)) is not None:
        _warn(limit, rows.env_id, rows.observation.shape[1])


@cache
def _warn(limit: int, env_id: str | None, columns: int) -> None:
    _log.warning(
        "nearly all terminals%s are %d rows apart, and none are further apart: they look like a time limit of %d "
        "steps. A time limit is not a terminal state. Agents and generators would learn wrong terminal states. If "
        "episodes are cut there, mark these rows in `timeouts` instead of `terminals`. `dones` need no change if "
        "`timeouts` are given too",
        f" of {env_id!r}" if env_id else "",
        limit,
        limit,
    )
