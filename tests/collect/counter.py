"""A world that counts instead of being drawn, and no processes: frames that take no time."""

from __future__ import annotations

import numpy as np
import pytest

from synther.pixels import recording
from synther.pixels.frames import Frames

from ..support.processes import Here

TASK = "dm_control/pendulum-swingup-v0"


class Counter:
    """A world of three numbers, the last of which counts decisions, and so does its frame. Reward: the action."""

    decisions = 10
    low, high = np.full(1, -1, np.float32), np.full(1, 1, np.float32)
    last = decisions
    """After so many decisions its state is terminal."""
    starts = 0
    """Episodes that were begun."""

    def __init__(self, env_id: str, *, size: int, repeat: int, backend: str, shadow_size: int | None) -> None:
        assert (env_id, backend) == (TASK, "chalk")
        self.size, self.repeat, self.shade = size, repeat, shadow_size or 0

    def reset(self, seed: int) -> None:
        type(self).starts += 1
        self.count = 0
        self.start = seed % 241
        self._see()

    def step(self, action: np.ndarray) -> tuple[None, float, bool, bool]:
        self.count += 1
        self._see()
        over = self.count >= self.last
        return None, float(action[0]), over and self.last < self.decisions, over and self.last == self.decisions

    def _see(self) -> None:
        self.state = np.array([self.start / 250, self.repeat / 10, self.count / 10], np.float32)
        self.frame = np.full((3, self.size, self.size), self.start + self.count, np.uint8)
        self.frame[2] = self.shade

    def close(self) -> None:
        pass

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


def same(one: Frames, other: Frames) -> bool:
    names = ("image", "action", "reward", "discount", "first", "low", "high")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def stand_in(patch: pytest.MonkeyPatch) -> type[Counter]:
    """From now on frames are recorded from the returned class, and need no graphics."""

    class Own(Counter):
        pass

    recording._env.cache_clear()
    patch.setattr(recording, "graphics", lambda: "chalk")
    patch.setattr(recording, "Workers", Here)
    patch.setattr(recording, "PixelEnv", Own)
    return Own
