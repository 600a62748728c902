"""Rows with a column of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from synther.data import spaces
from synther.data.spaces import Box, Discrete
from synther.data.transitions import Transitions

ROWS = 40


def columns(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    """Every argument repeated to ROWS rows, side by side."""
    return np.stack([np.resize(np.asarray(value), ROWS) for value in values], 1).astype(dtype)


def everything() -> Transitions:
    """A row of every kind: 9 observation columns and two actions, one of them discrete."""
    onehot = np.eye(3)[np.arange(ROWS) % 3]
    real = np.random.default_rng(1).normal(size=(ROWS, 1))
    observation = np.concatenate(
        [real, columns(7.25, [0, 1], [2, 3, 9], [4, 5, 6, 8], [1, 0, 0], dtype=np.float64), onehot], 1
    )
    return Transitions(
        observation=observation,
        action=np.concatenate([np.tanh(real), columns([0, 1, 2, 3, 4], dtype=np.float64)], 1),
        reward=columns([0, -1])[:, 0],
        next_observation=observation[::-1].copy(),
        terminal=np.arange(ROWS) % 7 == 0,
        action_space=(Box((-1.0,), (np.inf,)), Discrete(5)),
        observation_space=(
            Box.uniform(-1, 1, 4),
            Discrete(6, start=4),
            spaces.Binary(1),
            spaces.OneHot(3),
        ),
        env_id="Everything-v0",
        env_options={"nothing": 0},
    )
