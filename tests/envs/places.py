"""Small environments that do what they are told, wrong things included."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Point(gymnasium.Env):
    """A point on a line that is to be brought to the origin: x' = x + a / 2, r = -x'^2, from anywhere in [-1, 1].

    An action of `reach` counts as 1. An episode is over after `ends` steps in a terminal state, or cut after `cuts`.
    """

    def __init__(self, reach: float = 1.0, ends: int | None = None, cuts: int | None = 5, fault: str = "", at: int = 9):
        self.observation_space = Box(-np.inf, np.inf, (1,))
        self.action_space = Box(-reach, reach, (1,))
        self.reach, self.ends, self.cuts, self.fault, self.at = reach, ends, cuts, fault, at
        self.taken = 0
        if fault == "unmade":
            raise ValueError("no such part")
        if fault == "discrete":
            self.action_space = Discrete(2)
        if fault == "float64":
            self.action_space = Box(-reach, reach, (1,), np.float64)
        if fault == "unbounded":
            self.action_space = Box(-np.inf, np.inf, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.lived = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> Any:
        assert action in self.action_space
        self.x += action / (2 * self.reach)  # into the same array each time
        self.lived, self.taken = self.lived + 1, self.taken + 1
        reward = -float(self.x[0] ** 2)
        if self.taken == self.at and self.fault == "raises":
            raise RuntimeError("no such motor")
        if self.taken == self.at and self.fault == "reward":
            reward = float("nan")
        if self.taken == self.at and self.fault == "no reward":
            reward = None
        if self.taken == self.at and self.fault == "old":
            return self._seen(), reward, False, {}
        return self._seen(), reward, self.lived == self.ends, self.lived == self.cuts, {}

    def _seen(self) -> Any:
        if self.taken == self.at and self.fault == "nan":
            return np.full(1, np.nan, np.float32)
        if self.taken == self.at and self.fault == "grows":
            return np.zeros(2, np.float32)
        return self.x


class Parts(Point):
    """The same, seen in two parts."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.observation_space = Dict({"place": Box(-9, 9, (1,)), "again": Box(-9, 9, (2,))})

    def _seen(self) -> Any:
        return {"place": self.x.copy(), "again": np.repeat(self.x, 2) + 1}


class Kinds(Point):
    """The same, of which nothing is seen but two whole numbers."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.observation_space = MultiDiscrete([3, 4])

    def _seen(self) -> Any:
        return np.array([2, 1])


def register() -> None:
    for kind in (Point, Parts, Kinds):
        if f"{kind.__name__}-v0" not in gymnasium.registry:
            gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
