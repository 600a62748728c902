"""Compute the rows and discounted rewards of n-step targets.

For example, a 3-step target needs the state s_t, the rewards r_t, r_{t+1} and r_{t+2}, and the state s_{t+3}. These
three rows are a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError


class Windows(NamedTuple):
    """M windows of up to n consecutive rows, in the order of their first rows."""

    first: NDArray[np.int64]
    """Index of the first row. (M,)"""
    last: NDArray[np.int64]
    """Index of the last row. (M,)"""
    reward: NDArray[np.float64]
    """Discounted sum of the rewards from the first row to the last. (M,)"""


def windows(
    over: NDArray[np.bool_],
    terminal: NDArray[np.bool_],
    reward: NDArray[Any],
    n: int,
    discount: float,
    *,
    shortened: bool = False,
) -> Windows:
    """Return all windows of `n` rows that lie within one episode. All arrays are (N,).

    `over` marks rows after which the episode does not continue in the next row: terminals, time limits and gaps. A
    shorter window that ends with a terminal is kept, because its target needs no next state. Other shorter windows are
    left out, because the state n steps later is unknown. With `shortened` they are kept, and end in the last known
    state.
    """
    check_n_step(n)
    count = len(reward)
    ends = np.flatnonzero(np.append(over[:-1], True)) if count else np.zeros(0, np.int64)
    end = np.repeat(ends, np.diff(ends, prepend=-1))  # the last row of each row's episode
    rows = np.arange(count)
    first = rows if shortened else np.flatnonzero((end - rows >= n - 1) | terminal[end])
    last = np.minimum(first + n - 1, end[first])
    total = np.zeros(len(first))
    for step in range(min(n, count)):  # fixed order: the sum must not depend on how rows are split
        place = first + step
        inside = place <= last
        total[inside] += discount**step * reward[place[inside]].astype(np.float64)
    return Windows(first, last, total)


def check_n_step(n: int) -> None:
    """Raise `ConfigError` if `n` is not a whole number of at least 1."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n_step must be a whole number of at least 1, got {n!r}")
