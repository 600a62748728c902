"""Rows with every kind of column, and rows with none but real ones."""

from __future__ import annotations

import math

import numpy as np

from synther import Transitions
from synther.data.spaces import Box

ROWS = 2000
ACTIONS = (Box((-1.0, 0.0), (1.0, 0.1)),)
OBSERVATIONS = (Box.uniform(-math.inf, math.inf, 5),)


def observations(draw: np.random.Generator, count: int) -> np.ndarray:
    """A real column, one of tiny variance far from 0, a constant, whole numbers, and a flag."""
    columns = [
        draw.normal(2, 3, count),
        1e6 + 1e-3 * draw.normal(size=count),
        np.full(count, 0.1),
        draw.integers(0, 8, count),
        draw.random(count) < 0.3,
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def made(count: int = ROWS, **changes) -> Transitions:
    draw = np.random.default_rng(0)
    fields = {
        "observation": observations(draw, count),
        "action": (draw.uniform((-1, 0), (1, 0.1), (count, 2))).astype(np.float32),
        "reward": draw.normal(size=count).astype(np.float32),
        "next_observation": observations(draw, count),
        "terminal": np.arange(count) % 20 == 0,
        "action_space": ACTIONS,
        "observation_space": OBSERVATIONS,
        "env_id": "Made-v0",
    }
    return Transitions(**{**fields, **changes})


def plain(count: int = 300, columns: int = 1, **changes) -> Transitions:
    """Normal values and nothing else."""
    draw = np.random.default_rng(0)
    fields = {name: draw.normal(size=(count, columns)) for name in ("observation", "action", "next_observation")}
    return Transitions(**{**fields, "reward": draw.normal(size=count), **changes})


TINY = {
    "network": {"width": 32, "depth": 2, "embedding": 16},
    "fit": {"steps": 300, "batch_size": 128, "evaluate_every": 50, "checkpoint_every": 50},
    "sampler": {"steps": 16},
}
SHORT = {
    **TINY,
    "fit": {"steps": 20, "batch_size": 64, "evaluate_every": 10, "checkpoint_every": 10},
    "sampler": {"steps": 4},
}
QUICK = {**SHORT, "sampler": {"steps": 2}}
