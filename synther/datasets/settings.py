"""How each of D4RL's data sets is trained on and evaluated: what differs from the defaults of the algorithms.

From the code behind the paper, which follows CORL's. Our own `mixed` data is treated as medium-replay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.datasets.names import MIXED, REPLAY, Task
from synther.errors import DataError

Change = Callable[[Transitions], tuple[float, float]]
"""Of rewards: from all rows of a data set to a factor and what is added then."""

EPISODES, MAZE_EPISODES = 10, 100
"""Of every evaluation."""


def returns(rows: Transitions) -> NDArray[np.float64]:
    """Of the episodes that come to an end, in order."""
    return np.diff(np.cumsum(rows.reward, dtype=np.float64)[_ends(rows)], prepend=0.0)


def whole_returns(rows: Transitions, limit: int | None = None) -> NDArray[np.float64]:
    """Of those but for the ones that were cut before their time: by the end of the data, or of a leg of a run.

    Their time is `limit` steps, or where nobody knows that what the longest one took.
    """
    ends = _ends(rows)
    lengths = np.diff(ends, prepend=-1)
    whole = rows.terminal[ends] | (lengths >= (limit or lengths.max(initial=0)))
    return np.asarray(returns(rows)[whole])


def _ends(rows: Transitions) -> NDArray[np.intp]:
    if rows.timeout is None:
        raise DataError(
            "nobody knows where these episodes were cut, so their returns cannot be told: expected rows with timeouts"
        )
    return np.flatnonzero(rows.terminal | rows.timeout)


def by_returns(rows: Transitions) -> tuple[float, float]:
    """A factor of 1000 / (best return - worst return) of whole episodes."""
    found = whole_returns(rows)
    span = np.ptp(found) if len(found) else 0.0
    if span == 0:
        raise DataError(
            f"rewards are scaled by the span of the returns: expected episodes of different returns, got {len(found)} "
            "with none between them"
        )
    return 1000 / float(span), 0.0


def less_one(rows: Transitions) -> tuple[float, float]:
    """-1 a step, and 0 at the goal."""
    return 1.0, -1.0


_AGENT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (r"hopper-(medium|medium-replay)", "iql", {"deterministic": True, "tau": 0.001}),
    (r"hopper-medium-expert", "iql", {"expectile": 0.5, "beta": 6.0}),
    (r"antmaze-.+", "iql", {"expectile": 0.9, "beta": 10.0}),
    (r"hopper-.+", "edac", {"num_critics": 50}),
    (r"(halfcheetah|walker2d)-medium-expert", "edac", {"eta": 5.0}),
    (r"maze2d-.+", "edac", {"eta": 0.1}),
    (r"maze2d-.+", "cql", {"target_action_gap": 5.0}),
)
_REWARDS: tuple[tuple[str, str, Change], ...] = (
    (r"hopper-(medium|medium-replay)", "iql", by_returns),
    *((r"antmaze-.+", algorithm, less_one) for algorithm in ("td3_bc", "iql", "cql")),
)


def agent(task: Task) -> dict[str, dict[str, Any]]:
    """For each algorithm, what to change in its config."""
    return {algorithm: dict(changes) for pattern, algorithm, changes in _AGENT if _is(task, pattern)}


def rewards(task: Task) -> dict[str, Change]:
    """For each algorithm that wants other rewards, how to change them."""
    return {algorithm: change for pattern, algorithm, change in _REWARDS if _is(task, pattern)}


def episodes(task: Task) -> int:
    """To play in every evaluation."""
    return MAZE_EPISODES if task.is_maze else EPISODES


def _is(task: Task, pattern: str) -> bool:
    name = f"{task.env}-{REPLAY}" if task.level == MIXED else task.name
    return re.fullmatch(pattern, name) is not None
