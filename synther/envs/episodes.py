"""Play whole episodes with a policy, several at the same time. An episode depends only on its seed."""

from __future__ import annotations

import atexit
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.data import gym_spaces
from synther.envs.making import attempt, begun, opened, stepped
from synther.envs.policies import Policy
from synther.errors import DataError

Array = NDArray[Any]
Key = tuple[int, ...]
"""Seed of an episode: several integers, each 0 or more. The first one is a random stream."""

EVALUATIONS, RECORDINGS, TRAINING = 1, 2, 3
"""Random streams of evaluations, of recorded data and of online training, so that their initial states differ."""

SIDE_BY_SIDE = 5
"""Number of episodes that are played together. A policy acts on 5 observations in little more time than on one."""

LONGEST = 100_000
"""An episode that has not ended after this many steps is assumed to be endless."""


class Step(NamedTuple):
    """One step of an episode, with flat observations."""

    observation: Array
    action: Array
    reward: float
    next_observation: Array
    terminal: bool
    timeout: bool
    """Whether the episode was truncated in a non-terminal state, for example by a time limit."""


def play(
    envs: Sequence[Any], env_id: str, policy: Policy, keys: Sequence[Key], most: int | None = None
) -> Iterator[tuple[int, Step]]:
    """Play one episode in each of `envs`, with the seed in `keys`, and yield (index of the environment, step).

    An episode stops when it ends or after `most` steps. The policy always gets `SIDE_BY_SIDE` flat observations. With
    another number of rows, matrix products would round differently, and an episode would depend on the number of
    other episodes. The noise of a stochastic policy is the only exception: for all episodes it depends on the first
    key.
    """
    starts = [seed_of(key) for key in keys]
    rng = np.random.default_rng(np.random.SeedSequence(keys[0]).spawn(1)[0])
    current = [_reset(env, env_id, start) for env, start in zip(envs, starts, strict=True)]
    padded = np.zeros((SIDE_BY_SIDE, len(current[0])), current[0].dtype)
    padded[: len(keys)] = current
    running = list(range(len(keys)))
    for step in range(LONGEST if most is None else min(most, LONGEST)):
        actions = _actions(env_id, envs[0].action_space, policy, padded, rng)
        for slot in running:
            where = f"step {step} after reset(seed={starts[slot]})"
            taken = actions[slot].copy()  # some environments modify their action
            raw, reward, terminated, truncated = attempt(env_id, where, stepped, envs[slot], taken)
            if not math.isfinite(reward):
                raise DataError(f"{env_id} returned the reward {reward} in {where}: expected a finite number")
            following = attempt(env_id, where, gym_spaces.flat, envs[slot].observation_space, raw)
            if following.shape != current[slot].shape:
                raise DataError(
                    f"{env_id} returned {len(following)} numbers in {where}, and {len(current[slot])} before"
                )
            yield slot, Step(current[slot], actions[slot], reward, following, terminated, truncated and not terminated)
            current[slot] = padded[slot] = following
            if terminated or truncated:
                running = [other for other in running if other != slot]
        _check_finite(env_id, padded)
        if not running:
            return
    if most is not None and most <= LONGEST:
        return
    raise DataError(f"{env_id} did not end within {LONGEST:,} steps: give it a time limit (max_episode_steps)")


def seed_of(key: Key) -> int:
    """Return the seed with which the environment of an episode is reset."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def held(env_id: str, options: str, count: int) -> list[Any]:
    """Return `count` environments that stay open until this worker process ends.

    The same call returns the same environments. `options` is a JSON object with arguments of `gymnasium.make`.
    """
    return [_held(env_id, options, slot) for slot in range(count)]


@cache
def _held(env_id: str, options: str, slot: int) -> Any:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(opened(env_id, **json.loads(options)))


def number_of_choices(env: Any) -> int | None:
    """Return the number of discrete actions of an environment, or None if it has other actions."""
    import gymnasium

    space = env.action_space
    return int(space.n) if isinstance(space, gymnasium.spaces.Discrete) and space.n > 1 else None


def action_bounds(env: Any, env_id: str) -> tuple[Array, Array]:
    """Return the action bounds, (A,) each, or the first and the last number of a discrete action, (1,) each."""
    choices = number_of_choices(env)
    if choices is None:
        return action_box(env, env_id)
    first = np.array([env.action_space.start])
    return first, first + choices - 1


def check_fits(
    env_id: str, policy: str, inputs: int, actions: int, options: Mapping[str, Any] | None
) -> tuple[Array, Array]:
    """Return the environment's action bounds. Raises an error if a policy has other numbers of inputs or actions.

    `policy` is its name for error messages.
    """
    with opened(env_id, **options or {}) as env:
        low, high = action_bounds(env, env_id)
        expected = gym_spaces.width(env.observation_space), len(low)
    got = inputs, actions
    if got != expected:
        raise DataError(
            f"{policy} takes {got[0]} observation columns and returns {got[1]} actions: "
            f"{env_id} has {expected[0]} and {expected[1]}"
        )
    return low, high


def action_box(env: Any, env_id: str) -> tuple[Array, Array]:
    """Return the action bounds, (A,) each, of an environment with continuous actions."""
    import gymnasium

    space = env.action_space
    real = isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f"
    if not real or len(space.shape) != 1:
        raise DataError(f"{env_id} has the action space {space}: expected a Box of floats with one axis")
    return space.low, space.high


def _reset(env: Any, env_id: str, seed: int) -> Array:
    """Reset an environment and return its first observation, flat. Raises an error if it is not finite."""
    where = f"reset(seed={seed})"
    raw = attempt(env_id, where, begun, env, seed=seed)
    flat: Array = attempt(env_id, where, gym_spaces.flat, env.observation_space, raw)
    _check_finite(env_id, flat)
    return flat


def _actions(env_id: str, space: Any, policy: Policy, observations: Array, rng: np.random.Generator) -> Array:
    """Return the policy's actions in the dtype of the action space. Raises an error if shapes or values are wrong."""
    try:
        given = np.asarray(policy.act(observations, rng))
        if not space.shape and given.ndim == 2 and given.shape[1] == 1:  # one discrete action
            given = np.rint(given[:, 0])
        actions: Array = given.astype(space.dtype)
    except ValueError as error:
        raise DataError(
            f"{env_id}: the policy does not accept its {observations.shape[1]} observation columns: {error}"
        ) from error
    expected = (len(observations), *space.shape)
    if actions.shape != expected:
        raise DataError(f"{env_id}: the policy returned actions of shape {actions.shape}, expected {expected}")
    if not np.isfinite(actions).all():
        raise DataError(f"{env_id}: the policy returned an action that is not finite: it has diverged in training")
    if given.dtype == np.float32 and actions.dtype == np.float64:  # a float32 bound may lie outside the float64 bounds
        actions = np.clip(actions, space.low, space.high)
    return actions


def _check_finite(env_id: str, observations: Array) -> None:
    finite = np.isfinite(observations)
    if not finite.all():
        raise DataError(
            f"{env_id} returned {observations[~finite][0]} in observation column {np.argwhere(~finite)[0, -1]}"
        )
