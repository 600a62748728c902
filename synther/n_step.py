"""Windows of n steps: the rewards between a state and the one n steps later, for n-step targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError


class Windows(NamedTuple):
    """M windows of at most n rows, in the order of their first rows."""

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
    """The windows of `n` rows within episodes. All arrays are (N,).

    `over` marks rows that the next row does not continue: terminals, time limits, gaps. A window that a terminal cuts
    short is kept, because nothing is bootstrapped there. A window that anything else cuts short is left out, because
    the state n steps later is not known; with `shortened` it is kept, and ends in the last known state.
    """
    check_n_step(n)
    count = len(reward)
    ends = np.flatnonzero(np.append(over[:-1], True)) if count else np.zeros(0, np.int64)
    end = np.repeat(ends, np.diff(ends, prepend=-1))  # the last row of each row's episode
    rows = np.arange(count)
    first = rows if shortened else np.flatnonzero((end - rows >= n - 1) | terminal[end])
    last = np.minimum(first + n - 1, end[first])
    total = np.zeros(len(first))
    for step in range(min(n, count)):  # in this order, so that the sum does not depend on how rows are cut into pieces
        place = first + step
        inside = place <= last
        total[inside] += discount**step * reward[place[inside]].astype(np.float64)
    return Windows(first, last, total)


def check_n_step(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n_step must be a whole number of at least 1, got {n!r}")
