"""Tiny frames, agents that take no time to train on them, and worlds that need no renderer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from synther.experiments.specs import PixelRun
from synther.pixels import evaluation
from synther.pixels.frames import Frames
from synther.presets import PRESETS

from ..support.processes import Here

SIZE, ACTIONS = 16, 2
ENV_ID = "dm_control/point_mass-easy-v0"
BC = {"width": 8, "depth": 1, "batch_size": 4}
DRQ = {**BC, "nstep": 2, "stddev_updates": 10}
PLAN = PixelRun(
    agent=DRQ, updates=12, seeds=2, seed=3, measure_every=5, device="cpu", checkpoint_seconds=0, tensorboard="off"
)
PLAN_BC = replace(PLAN, algorithm="bc", agent=BC)
TINY = {"network": {"width": 8, "depth": 1, "embedding": 8}, "fit": {"steps": 8, "batch_size": 32, "evaluate_every": 4}}
SETTINGS = PRESETS["fast"].changed(**TINY, sampler={"steps": 2})


def frames(*, seed: int = 0, env_id: str | None = ENV_ID, repeat: int | None = 2) -> Frames:
    """Four episodes of seven decisions."""
    draw = np.random.default_rng(seed)
    first = np.arange(32) % 8 == 0
    return Frames(
        draw.integers(0, 256, (32, 3, SIZE, SIZE), np.uint8),
        np.where(first[:, None], 0, draw.uniform(-1, 1, (32, ACTIONS))).astype(np.float32),
        np.where(first, 0, draw.normal(size=32)).astype(np.float32),
        np.ones(32, np.float32),
        first,
        env_id,
        repeat,
    )


class Wall:
    """In the place of a `PixelEnv`: noise on a wall for three decisions, which pay what the first action is."""

    shadows: ClassVar[list[int | None]] = []
    """Of all walls that were built."""

    def __init__(self, env_id: str, *, size: int, repeat: int, stack: int, shadow_size: int | None = None) -> None:
        self.shadows.append(shadow_size)
        self.shape, self.repeat, self.low = (3 * stack, size, size), repeat, np.full(ACTIONS, -1.0, np.float32)

    def reset(self, seed: int) -> np.ndarray:
        self.draw, self.left = np.random.default_rng(seed), 3
        return self._seen()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.left -= 1
        return self._seen(), float(self.repeat * action[0]), False, self.left == 0

    def close(self) -> None:
        pass

    def _seen(self) -> np.ndarray:
        return self.draw.integers(0, 256, self.shape, np.uint8)


def play_here(patched: pytest.MonkeyPatch) -> None:
    """Evaluate in front of a wall, in this process."""
    patched.setattr(evaluation, "Workers", Here)
    patched.setattr(evaluation, "play", partial(evaluation.play, make_env=Wall))
    patched.setattr(evaluation, "obstacle", lambda env_id: None)


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
