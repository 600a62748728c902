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
        if fault == "spaceless":
            del self.observation_space
        if fault == "discrete":
            self.action_space = Discrete(2)
        if fault == "several discrete":
            self.action_space = MultiDiscrete([2, 3])
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


class Pictures(Point):
    """The same, seen from above in `size` x `size` pixels."""

    def __init__(self, size: int = 32, **options: Any):
        super().__init__(**options)
        self.observation_space = Box(0, 255, (size, size, 3), np.uint8)

    def _seen(self) -> Any:
        return np.full(self.observation_space.shape, 7, np.uint8)


class Kinds(Point):
    """The same, of which nothing is seen but two whole numbers."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.observation_space = MultiDiscrete([3, 4])

    def _seen(self) -> Any:
        return np.array([2, 1])


class Counting(gymnasium.Env[Any, Any]):
    """Counts up, in one array that it uses again and again, and is over at `end`; breaks at step `bad` as asked."""

    def __init__(self, end: int = 4, terminates: bool = True, bad: tuple[int, str] = (-1, "")) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,))
        self.action_space = Box(-1, 1, (1,))
        self.end, self.terminates, self.bad = end, terminates, bad
        self.place = np.zeros(2, np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.bad[1] == "reset":
            raise RuntimeError("no power")
        self.place[:] = 0
        return self.place if self.bad[1] == "old reset" else (self.place, {})

    def step(self, action: Any) -> Any:
        bad = self.bad[1] if self.bad[0] == self.steps else ""
        self.steps += 1
        self.place += (1, -1)
        if bad == "step":
            raise RuntimeError("wires crossed")
        over = bool(self.place[0] == self.end)
        reward = np.inf if bad == "reward" else float(self.place[0])
        if bad == "observation":
            self.place[1] = np.nan
        if bad == "old step":
            return self.place, 1.0, over, {}
        if bad == "shape":
            return np.zeros(3), 1.0, over, over, {}
        return self.place, reward, over and self.terminates, over, {}


class Named(Counting):
    """The same, seen as a dictionary."""

    def __init__(self, end: int = 4) -> None:
        super().__init__(end)
        self.observation_space = Dict(place=self.observation_space, end=Discrete(2))

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return {"place": super().reset(**given)[0], "end": 0}, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        place, *rest = super().step(action)
        return {"place": place, "end": int(rest[2])}, *rest  # type: ignore[return-value]


def register() -> None:
    for kind in (Point, Parts, Pictures, Kinds):
        if f"{kind.__name__}-v0" not in gymnasium.registry:
            gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
