"""Small frames for tests, and agents that learn from them."""

from __future__ import annotations

import numpy as np
import torch

from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.pixels.agent import PixelAgent
from synther.pixels.frames import Frames

CPU = torch.device("cpu")
SIZE = 15
SMALL = {"width": 8, "batch_size": 4, "learning_rate": 1e-2, "stddev_updates": 20}
CONFIGS = {"drq_bc": DrQBCConfig(**SMALL), "bc": NoisyBCConfig(**SMALL)}
"""Every algorithm, small."""


def noise(episodes: int = 3, steps: int = 6, channels: int = 1, size: int = SIZE, seed: int = 0) -> Frames:
    """Frames, actions and rewards that mean nothing; the last episode ends with a terminal."""
    draw, count = np.random.default_rng(seed), episodes * (steps + 1)
    image = draw.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    discount = np.ones(count, np.float32)
    discount[-1] = 0
    first = np.arange(count) % (steps + 1) == 0
    action = draw.uniform(-1, 1, (count, 2)).astype(np.float32)
    return Frames(image, action, draw.normal(size=count).astype(np.float32), discount, first)


def stacks(frames: Frames, nstep: int = 1) -> np.ndarray:
    """Every observation after which so many decisions follow. (M, 3 C, H, W)"""
    records = frames.decisions(nstep, 1.0).stack
    return frames.image[records].reshape(len(records), -1, *frames.image.shape[2:])


def agent(config=CONFIGS["drq_bc"], seeds=(3, 4), frames: Frames | None = None, updates: int = 0) -> PixelAgent:
    made = PixelAgent(config, frames or noise(), seeds, device=CPU)
    made.train(updates)
    return made
