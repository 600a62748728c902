"""Rows of a pendulum in all but its dynamics, which no test looks at, and an evaluation that takes no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from synther import Transitions
from synther.data.spaces import Box
from synther.envs.evaluation import Evaluation
from synther.envs.policies import MlpPolicy


def swings(count: int = 60, *, seed: int = 0, shift: float = 0.0, env_id: str | None = "Pendulum-v1") -> Transitions:
    draw = np.random.default_rng(seed)
    observation = draw.normal(shift, 1 + shift, (count, 3)).astype(np.float32)
    return Transitions(
        observation,
        draw.uniform(-2, 2, (count, 1)).astype(np.float32),
        draw.normal(size=count).astype(np.float32),
        observation + np.float32(0.1),
        np.arange(count) % 10 == 0,
        action_space=(Box.uniform(-2, 2, 1),),
        env_id=env_id,
    )


def linked(count: int = 60, **how: Any) -> Transitions:
    """The same, each row followed by the next of its episode. Every second episode ends at a time limit."""
    rows = swings(count, **how)
    following = np.concatenate([rows.observation[1:], rows.observation[:1]])
    last = np.arange(count) % 10 == 9
    even = np.arange(count) // 10 % 2 == 0
    return replace(rows, next_observation=following, terminal=last & even, timeout=last & ~even)


class Guess:
    """In the place of an Evaluator: an episode's return is what the policy does in one state, of its own number."""

    slow = False
    """Whether episodes only end when somebody waits for them."""

    def __init__(
        self, env_id: str, members: Sequence[int], *, episodes: int, workers: int | None, options: Mapping[str, Any]
    ) -> None:
        self.members, self.episodes = members, episodes

    def start(self, policies: Sequence[MlpPolicy], number: int) -> Guessed:
        assert len(policies) == len(self.members)
        returns = []
        for seed, policy in zip(self.members, policies, strict=True):
            size = self.episodes, policy.inputs
            returns.append(policy.act(np.random.default_rng((seed, number)).normal(size=size))[:, 0])
        return Guessed(number, returns, not self.slow)

    def __enter__(self) -> Guess:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


class Guessed:
    def __init__(self, number: int, returns: Sequence[np.ndarray], over: bool) -> None:
        self.number, self.returns, self.over = number, np.array(returns, np.float64), over

    def done(self) -> bool:
        return self.over

    def result(self) -> Evaluation:
        return Evaluation(self.number, self.returns, np.ones(self.returns.shape, np.int64), 10 * self.returns)
