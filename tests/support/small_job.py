"""A job that takes no time: its rows and its model."""

from __future__ import annotations

import numpy as np

from synther import Synthesizer, Transitions
from synther.data.spaces import Box

TINY = {
    "network": {"width": 16, "depth": 1, "embedding": 8},
    "fit": {"steps": 60, "batch_size": 64, "evaluate_every": 10, "checkpoint_every": 10},
    "sampler": {"steps": 3},
}


def made(count: int = 300, shift: float = 0.0) -> Transitions:
    draw = np.random.default_rng(0)
    observation = draw.normal(shift, 1, (count, 2))
    action = draw.uniform(-1, 1, (count, 1))
    return Transitions(
        observation,
        action,
        draw.normal(size=count),
        observation + 0.1,
        np.arange(count) % 10 == 0,
        action_space=(Box.uniform(-1, 1, 1),),
        env_id="Made-v0",
    )


def model(seed: int = 0, **changes) -> Synthesizer:
    return Synthesizer("laptop", seed=seed, **{**TINY, **changes})
