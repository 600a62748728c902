"""The return of a row: the discounted sum of rewards from this row to the end of its episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synther.data.episodes import episode_ids
from synther.data.transitions import Transitions
from synther.errors import DataError


def return_to_go(rows: Transitions, discount: float = 0.99) -> NDArray[np.float64]:
    """Return the discounted sum of rewards from each row to the end of its episode. (N,)

    If a time limit or the end of the data cuts an episode off, the rewards after this point are not estimated.
    """
    ids = episode_ids(rows)
    if ids is None:
        raise DataError(
            "condition 'return' needs rows in the order of their episodes, but these are shuffled, or most of them do "
            "not start where the previous row ended. Pass the returns as an array, or choose another condition"
        )
    returns = rows.reward.astype(np.float64)
    for row in range(len(rows) - 2, -1, -1):
        if ids[row] == ids[row + 1]:
            returns[row] += discount * returns[row + 1]
    return returns
