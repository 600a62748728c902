"""Collect transitions from an environment, with a policy or with random actions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther import gym_specs
from synther.data import gym_spaces
from synther.data.transitions import FIELDS, Transitions
from synther.envs.making import Trusted, attempt, opened
from synther.errors import DataError

Policy = Callable[[Any], Any]
"""A function that takes an observation of the environment and returns one of its actions."""


def rollout(env: Any, steps: int, *, policy: Policy | None = None, seed: int = 0) -> Transitions:
    """Collect `steps` transitions of a Gymnasium environment, given as an id or as an object.

    Next observations are those before a reset. Without a policy, actions are sampled from the action space. If the last
    episode is not over, its last row is marked as a timeout. Dict, tuple and discrete observations are flattened by
    `gymnasium.spaces.flatten`. Actions of a discrete space are integers (N,). An environment object stays open.
    """
    if steps < 1:
        raise DataError(f"steps must be at least 1, got {steps}")
    if hasattr(env, "num_envs"):
        raise DataError("a vector environment mixes episodes in one step: pass a single environment")
    if isinstance(env, str):
        env = Trusted(env)
    with opened(env) if isinstance(env, str) else nullcontext(env) as one:
        rows = _collect(one, steps, policy, seed)
    return replace(rows, env_id=env) if isinstance(env, str) else rows  # env.spec.id lacks the module


def _collect(env: Any, steps: int, policy: Policy | None, seed: int) -> Transitions:
    """Play `steps` steps in an environment that is open."""
    action_space = gym_spaces.action_space(env.action_space)
    observation_space = gym_spaces.observation_space(env.observation_space)
    env.action_space.seed(seed)
    columns: dict[str, list[Any]] = {name: [] for name in FIELDS}
    raw: Any = None
    current: NDArray[Any] | None = None  # flat observation; None: reset first
    for step in range(steps):
        if current is None:
            raw, _ = attempt("the environment", f"reset() at step {step}", env.reset, seed=None if step else seed)
            current = _flat(env, raw, step)
        action = env.action_space.sample() if policy is None else policy(raw)
        taken = np.array(action)  # a copy: some policies reuse the same array
        raw, reward, terminated, truncated, _ = attempt("the environment", f"step() at step {step}", env.step, action)
        following = _flat(env, raw, step)
        if not np.isfinite(reward):
            raise DataError(f"the environment returned reward {reward} at step {step}: expected a finite number")
        values = (current, taken, float(reward), following, bool(terminated), bool(truncated and not terminated))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        current = None if terminated or truncated else following
    columns["timeout"][-1] = not columns["terminal"][-1]
    spec = getattr(env, "spec", None)
    fields: dict[str, Any] = {name: np.array(values) for name, values in columns.items() if name != "action"}
    return Transitions(
        **fields,
        action=gym_spaces.actions(env.action_space, columns["action"]),
        action_space=action_space,
        observation_space=observation_space,
        env_id=None if spec is None else spec.id,
        env_options=None if spec is None else gym_specs.options_of(spec),
    )


def _flat(env: Any, observation: Any, step: int) -> NDArray[Any]:
    """Return the flat observation (O,). Raises an error if it does not fit its space or is not finite."""
    import gymnasium

    try:
        flat = np.asarray(gymnasium.spaces.flatten(env.observation_space, observation))
    except Exception as error:
        raise DataError(
            f"the observation at step {step} does not fit {env.observation_space}: {type(error).__name__}: {error}"
        ) from error
    if not np.isfinite(flat).all():
        column = int(np.argmin(np.isfinite(flat)))
        raise DataError(f"the environment returned {flat[column]} in observation column {column} at step {step}")
    return flat
