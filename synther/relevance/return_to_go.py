"""The discounted sum of the rewards from a row to the end of its episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synther.data.episodes import episode_ids
from synther.data.transitions import Transitions
from synther.errors import DataError


def return_to_go(rows: Transitions, discount: float = 0.99) -> NDArray[np.float64]:
    """What is left of an episode that a time limit or the end of the data cuts short does not count."""
    ids = episode_ids(rows)
    if ids is None:
        raise DataError(
            "condition 'return' needs rows in the order of their episodes: these are shuffled, or most of them do not "
            "begin where the row before ended. Give the returns as an array, or choose another condition"
        )
    found = rows.reward.astype(np.float64)
    for row in range(len(rows) - 2, -1, -1):
        if ids[row] == ids[row + 1]:
            found[row] += discount * found[row + 1]
    return found
