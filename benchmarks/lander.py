"""Record replay data of a noisy task: continuous LunarLander with wind, from random actions to safe landings.

Gymnasium's own landing controller acts. It improves like an agent that learns: the first actions are random, then the
controller has a varying gain, slowly varying errors and exploration noise. All three disturbances shrink until the end.
Recording takes a minute on one core and needs Box2D.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.lunar_lander import heuristic
from numpy.typing import NDArray

from synther import Transitions
from synther.envs.rollout import rollout

ENV_ID, OPTIONS = "LunarLander-v3", {"continuous": True, "enable_wind": True}
RANDOM = 0.05
"""Share of the steps with random actions."""


class Learning(gymnasium.Wrapper[Any, Any, Any, Any]):
    """LunarLander with a controller, `act`, that improves with the number of steps."""

    def __init__(self, steps: int, seed: int) -> None:
        super().__init__(gymnasium.make(ENV_ID, disable_env_checker=True, **OPTIONS))
        self.steps, self.done = steps, 0
        self.draw = np.random.default_rng(seed)

    def step(self, action: Any) -> Any:
        self.done += 1
        return super().step(action)

    def act(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        if self.done < RANDOM * self.steps:
            return np.asarray(self.draw.uniform(-1, 1, 2), np.float32)
        done = self.done / self.steps
        left, turn = 1 - done, 2 * np.pi * done
        gain = 1 - 0.45 * left * (1 - np.cos(4 * turn))
        error = 0.6 * left * np.array([np.sin(3 * turn), np.cos(5 * turn)])
        right: NDArray[Any] = heuristic(self.unwrapped, observation)  # type: ignore[no-untyped-call]
        wanted = gain * right + error + self.draw.normal(0, 0.1 + 0.3 * left, 2)
        return np.asarray(np.clip(wanted, -1, 1), np.float32)


def record(steps: int, seed: int = 0) -> Transitions:
    """Record `steps` rows."""
    env = Learning(steps, seed)
    rows = rollout(env, steps, policy=env.act, seed=seed)
    env.close()
    return replace(rows, env_id=ENV_ID, env_options=OPTIONS, observation_space=None)
