"""A world that needs no renderer: one half of the screen is lit, and the action shall point to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest

from synther.pixels import vector_env

from ..support.processes import Here


class Lamps:
    """Episodes of seven decisions; the lit half is drawn anew each time.

    What an action is paid for each repetition is 1 less its distance from the side that was lit, -1 or 1.
    """

    DECISIONS = 7
    fault = ""
    resets: ClassVar[list[int]] = []

    def __init__(self, env_id: str, *, size: int, repeat: int, stack: int, shadow_size: int | None = None) -> None:
        self.size, self.repeat, self.stack = size, repeat, stack
        self.high = np.full(2 if self.fault == "actions" else 1, 1.0, np.float32)
        self.low = -self.high

    def reset(self, seed: int) -> np.ndarray:
        self.resets.append(seed)
        self.draw, self.left = np.random.default_rng(seed), self.DECISIONS
        return self._seen()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.left -= 1
        reward = self.repeat * (1 - abs(float(action[0]) - self.side))
        if self.fault == "reward":
            reward = float("nan")
        return self._seen(), reward, False, self.left == 0 and self.fault != "endless"

    def close(self) -> None:
        pass

    def _seen(self) -> np.ndarray:
        """Frames of a stack are all alike here: no frame tells anything about another."""
        self.side = float(self.draw.choice([-1, 1]))
        image = self.draw.integers(0, 40, (3, self.size, self.size), dtype=np.uint8)
        half = slice(self.size // 2) if self.side < 0 else slice(self.size // 2, None)
        image[:, :, half] += 200
        return np.concatenate([image] * self.stack)


class Doors(Lamps):
    """The same with terminal states, at times of their own: episodes of different seeds differ in length."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        seen, reward, _, timeout = super().step(action)
        terminal = bool(self.draw.random() < 0.15)
        return seen, reward, terminal, timeout and not terminal


@contextmanager
def worlds_here() -> Iterator[None]:
    """Worlds step in this process, and none of another test's is kept."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vector_env, "Workers", Here)
        vector_env._held.cache_clear()
        yield
        vector_env._held.cache_clear()
