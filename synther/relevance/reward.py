"""The reward of a row."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from synther.data.transitions import Transitions


def reward(rows: Transitions) -> NDArray[Any]:
    """Return the reward of each row. (N,)"""
    return rows.reward
