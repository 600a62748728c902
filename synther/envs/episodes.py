"""Play whole episodes with a policy, a few side by side. An episode depends only on its seed."""

from __future__ import annotations

import atexit
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.data import gym_spaces
from synther.envs.making import begun, opened, stepped
from synther.envs.policies import Policy
from synther.errors import DataError

Array = NDArray[Any]
Key = tuple[int, ...]
"""Seed of an episode: integers, 0 or more."""

SIDE_BY_SIDE = 5
"""Episodes that are played together. Acting on this many observations costs little more than acting on one."""

LONGEST = 100_000
"""Steps after which an episode is assumed to be endless."""


class Step(NamedTuple):
    observation: Array
    action: Array
    reward: float
    next_observation: Array
    terminal: bool
    timeout: bool
    """The episode was truncated here, for example by a time limit, in a non-terminal state."""


def play(
    envs: Sequence[Any], env_id: str, policy: Policy, keys: Sequence[Key], most: int | None = None
) -> Iterator[tuple[int, Step]]:
    """Play one episode in each of `envs`, from its key, and yield (index of the environment, step).

    An episode stops when it ends or after `most` steps. Observations are flat. The policy always gets `SIDE_BY_SIDE` of
    them, because products with another number of rows round differently, and an episode must not depend on the others
    beside it. Only the noise of a stochastic policy comes from the first key for all episodes.
    """
    starts = [int(np.random.SeedSequence(key).generate_state(1)[0]) for key in keys]
    rng = np.random.default_rng(np.random.SeedSequence(keys[0]).spawn(1)[0])
    here = [_reset(env, env_id, start) for env, start in zip(envs, starts, strict=True)]
    seen = np.zeros((SIDE_BY_SIDE, len(here[0])), here[0].dtype)
    seen[: len(keys)] = here
    running = list(range(len(keys)))
    for step in range(LONGEST if most is None else min(most, LONGEST)):
        actions = _chosen(env_id, envs[0].action_space, policy, seen, rng)
        for slot in running:
            where = f"step {step} after reset(seed={starts[slot]})"
            taken = actions[slot].copy()  # some environments modify their action
            raw, reward, terminated, truncated = _attempt(env_id, where, stepped, envs[slot], taken)
            if not math.isfinite(reward):
                raise DataError(f"{env_id} returned the reward {reward} in {where}: expected a finite number")
            following = _attempt(env_id, where, gym_spaces.flat, envs[slot].observation_space, raw)
            if following.shape != here[slot].shape:
                raise DataError(f"{env_id} returned {len(following)} numbers in {where}, and {len(here[slot])} before")
            yield slot, Step(here[slot], actions[slot], reward, following, terminated, truncated and not terminated)
            here[slot] = seen[slot] = following
            if terminated or truncated:
                running = [other for other in running if other != slot]
        _check_finite(env_id, seen)
        if not running:
            return
    if most is not None and most <= LONGEST:
        return
    raise DataError(f"{env_id} did not end within {LONGEST:,} steps: give it a time limit (max_episode_steps)")


def held(env_id: str, options: str, count: int) -> list[Any]:
    """Environments that stay open until this worker process ends.

    `options` is a JSON object with arguments of `gymnasium.make`.
    """
    return [_held(env_id, options, slot) for slot in range(count)]


@cache
def _held(env_id: str, options: str, slot: int) -> Any:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(opened(env_id, **json.loads(options)))


def number_of_choices(env: Any) -> int | None:
    """The number of discrete actions of an environment; None if its actions are something else."""
    import gymnasium

    space = env.action_space
    return int(space.n) if isinstance(space, gymnasium.spaces.Discrete) and space.n > 1 else None


def action_bounds(env: Any, env_id: str) -> tuple[Array, Array]:
    """`action_box`, or the first and the last of discrete actions. (1,) each"""
    choices = number_of_choices(env)
    if choices is None:
        return action_box(env, env_id)
    first = np.array([env.action_space.start])
    return first, first + choices - 1


def check_fits(
    env_id: str, policy: str, inputs: int, actions: int, options: Mapping[str, Any] | None
) -> tuple[Array, Array]:
    """Refuse a policy for other observations or actions; returns the bounds of the actions."""
    with opened(env_id, **options or {}) as env:
        low, high = action_bounds(env, env_id)
        expected = gym_spaces.width(env.observation_space), len(low)
    got = inputs, actions
    if got != expected:
        raise DataError(
            f"{policy} takes {got[0]} observation columns and gives {got[1]} actions: "
            f"{env_id} has {expected[0]} and {expected[1]}"
        )
    return low, high


def action_box(env: Any, env_id: str) -> tuple[Array, Array]:
    """The action bounds (A,) of an environment with continuous actions."""
    import gymnasium

    space = env.action_space
    real = isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f"
    if not real or len(space.shape) != 1:
        raise DataError(f"{env_id} has the action space {space}: expected a Box of floats with one axis")
    return space.low, space.high


def _reset(env: Any, env_id: str, seed: int) -> Array:
    where = f"reset(seed={seed})"
    raw = _attempt(env_id, where, begun, env, seed=seed)
    here: Array = _attempt(env_id, where, gym_spaces.flat, env.observation_space, raw)
    _check_finite(env_id, here)
    return here


def _chosen(env_id: str, space: Any, policy: Policy, seen: Array, rng: np.random.Generator) -> Array:
    try:
        given = np.asarray(policy.act(seen, rng))
        if not space.shape and given.ndim == 2 and given.shape[1] == 1:  # one discrete action
            given = np.rint(given[:, 0])
        actions: Array = given.astype(space.dtype)
    except ValueError as error:
        raise DataError(
            f"{env_id}: the policy does not accept its {seen.shape[1]} observation columns: {error}"
        ) from error
    expected = (len(seen), *space.shape)
    if actions.shape != expected:
        raise DataError(f"{env_id}: the policy returned actions of shape {actions.shape}, expected {expected}")
    if not np.isfinite(actions).all():
        raise DataError(f"{env_id}: the policy returned an action that is not finite: it has diverged in training")
    if given.dtype == np.float32 and actions.dtype == np.float64:  # a float32 bound may lie outside the float64 bounds
        actions = np.clip(actions, space.low, space.high)
    return actions


def _attempt(env_id: str, what: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return call(*given, **named)
    except Exception as error:  # an environment can raise anything
        raise DataError(f"{env_id} failed in {what}: {type(error).__name__}: {error}") from error


def _check_finite(env_id: str, observations: Array) -> None:
    finite = np.isfinite(observations)
    if not finite.all():
        raise DataError(
            f"{env_id} returned {observations[~finite][0]} in observation column {np.argwhere(~finite)[0, -1]}"
        )
