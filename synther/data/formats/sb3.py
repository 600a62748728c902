"""Stable-Baselines3 replay buffers, as objects in memory.

Off-policy algorithms of Stable-Baselines3 store Box actions rescaled to [-1, 1]; so do the rows that come from them.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from synther.data import spaces
from synther.data.formats import gym_spaces
from synther.data.formats.writing import Stream
from synther.data.spaces import Space
from synther.data.transitions import Array, RowSource, Transitions
from synther.errors import DataError, FormatError, MissingExtra

_log = logging.getLogger(__name__)


def read(source: Any) -> Transitions:
    """All valid rows: environment after environment, each from its oldest row to its newest."""
    buffer = _replay_buffer(source)
    if hasattr(buffer, "transitions"):  # one that keeps rows in its own way, such as a SyntheticReplayBuffer
        own: Transitions = buffer.transitions()
        return own
    steps = _steps(buffer)
    rows = len(steps) * buffer.n_envs
    dones = _by_env(buffer.dones, steps).astype(bool)
    timeouts = _by_env(buffer.timeouts, steps).astype(bool)
    action = gym_spaces.actions(buffer.action_space, _by_env(buffer.actions, steps))
    observation = _observations(buffer, buffer.observations, steps, rows)
    following = _next_observations(buffer, steps, rows)
    if buffer.handle_timeout_termination:
        meeting = np.arange(1, rows) % len(steps) == 0
        # Where environments meet, and where one was reset in the middle of an episode, as every `learn` does.
        timeouts[:-1] |= (meeting | (following[:-1] != observation[1:]).any(1)) & ~dones[:-1]
    return Transitions(
        observation=observation,
        action=action,
        reward=_by_env(buffer.rewards, steps),
        next_observation=following,
        terminal=dones & ~timeouts,
        timeout=timeouts if buffer.handle_timeout_termination else None,
        action_space=_action_space(buffer.action_space, action),
        observation_space=gym_spaces.observation_space(buffer.observation_space),
    )


def _steps(buffer: Any) -> Array:
    """Places in the ring, oldest first."""
    if not buffer.full:
        steps = np.arange(buffer.pos)
    else:
        steps = (buffer.pos + np.arange(buffer.buffer_size)) % buffer.buffer_size
        if buffer.optimize_memory_usage:
            steps = steps[1:]  # its observation was overwritten by the next one of the newest row
    if len(steps) == 0:
        raise DataError("the replay buffer holds no complete row: expected at least one transition")
    return steps


def _by_env(array: Array, steps: Array) -> Array:
    """(buffer_size, n_envs, ...) to (n_envs * steps, ...)."""
    picked = array[steps].swapaxes(0, 1)
    return picked.reshape(picked.shape[0] * picked.shape[1], *picked.shape[2:])


def _observations(buffer: Any, stored: Any, steps: Array, rows: int) -> Array:
    if isinstance(stored, dict):
        values: Any = {key: _by_env(array, steps) for key, array in stored.items()}
    else:
        values = _by_env(stored, steps)
    return gym_spaces.flatten(buffer.observation_space, values, rows)


def _next_observations(buffer: Any, steps: Array, rows: int) -> Array:
    if not buffer.optimize_memory_usage:
        return _observations(buffer, buffer.next_observations, steps, rows)
    following = _observations(buffer, buffer.observations, (steps + 1) % buffer.buffer_size, rows)
    # The first observation of the next episode stands where that of a finished one should: as in episodes.pair,
    # the row's own observation stands in for it. Only the newest row still has its true one.
    ended = buffer.dones[steps].astype(bool)  # (steps, n_envs)
    ended[-1] = False
    ended = ended.T.reshape(-1)
    if ended.any():
        _log.info("optimize_memory_usage: %d rows that end an episode lost their next observation", np.sum(ended))
        following[ended] = _observations(buffer, buffer.observations, steps, rows)[ended]
    return following


def _action_space(space: Any, action: Array) -> Space | None:
    own = gym_spaces.action_space(space)
    if not isinstance(own[0], spaces.Box) or _beyond_one(action):
        return gym_spaces.believed(own, action)
    return (spaces.Box.uniform(-1, 1, own[0].width),)


def _beyond_one(action: Array) -> bool:
    return bool((np.abs(action) > 1 + 1e-6).any())


def write(target: Any, rows: RowSource) -> None:
    """Append rows to a replay buffer; over several environments they are dealt out in turn."""
    buffer = _replay_buffer(target)
    _check_appendable(buffer)
    stream = Stream(rows)
    if stream.rows % buffer.n_envs:
        fitting = stream.rows // buffer.n_envs * buffer.n_envs
        raise DataError(
            f"{stream.rows:,} rows cannot be dealt evenly to the {buffer.n_envs} environments of the buffer: "
            f"pass {fitting:,} of them"
        )
    stream.chunk_rows = max(1, stream.chunk_rows // buffer.n_envs) * buffer.n_envs
    expected = gym_spaces.width(buffer.observation_space), int(buffer.action_dim)
    got = stream.first.observation.shape[1], int(np.prod(stream.first.action.shape[1:]))
    if got != expected:
        raise DataError(
            f"the rows have {got[0]} observation and {got[1]} action columns, the replay buffer {expected[0]} and "
            f"{expected[1]}: they come from different environments"
        )
    discrete = gym_spaces.action_space(buffer.action_space)
    for part in stream.parts():
        if not any(isinstance(one, spaces.Box) for one in discrete):
            spaces.check(discrete, part.action.reshape(len(part), -1), "action")
        _append(buffer, part)


def _append(buffer: Any, rows: Transitions) -> None:
    size, envs = buffer.buffer_size, buffer.n_envs
    steps = len(rows) // envs
    kept = min(steps, size)  # older ones would be overwritten by newer ones of the same call
    skipped = (steps - kept) * envs
    places = (buffer.pos + steps - kept + np.arange(kept)) % size

    def put(store: Array, values: Array) -> None:
        store[places] = values[skipped:].reshape(kept, envs, *store.shape[2:])

    for store, flat in ((buffer.observations, rows.observation), (buffer.next_observations, rows.next_observation)):
        values = gym_spaces.unflatten(buffer.observation_space, flat)
        for one, batch in (
            [(store[key], values[key]) for key in store] if isinstance(store, dict) else [(store, values)]
        ):
            put(one, batch)
    put(buffer.actions, _stored_actions(buffer, rows))
    put(buffer.rewards, rows.reward)
    ended = rows.terminal
    if buffer.handle_timeout_termination:
        timeout = np.zeros(len(rows), bool) if rows.timeout is None else rows.timeout & ~rows.terminal
        put(buffer.timeouts, timeout)
        ended = rows.terminal | timeout
    put(buffer.dones, ended)
    buffer.full = buffer.full or buffer.pos + steps >= size
    buffer.pos = (buffer.pos + steps) % size


def _stored_actions(buffer: Any, rows: Transitions) -> Array:
    """Actions in the units of the buffer: [-1, 1] by Stable-Baselines3's convention, or its environment's own."""
    own = gym_spaces.action_space(buffer.action_space)[0]
    if not isinstance(own, spaces.Box) or own == spaces.Box.uniform(-1, 1, own.width) or _beyond_one(buffer.actions):
        return rows.action
    if rows.action_space == (own,) and np.isfinite([own.low, own.high]).all():
        low, high = np.asarray(own.low), np.asarray(own.high)
        return np.asarray(2 * (rows.action - low) / np.where(high > low, high - low, 1) - 1, buffer.actions.dtype)
    if _beyond_one(rows.action):
        raise DataError(
            "actions lie outside [-1, 1], to which Stable-Baselines3 rescales what it stores: give the rows the "
            "action_space of the environment (rows.with_spaces(action=...)), then they are rescaled too"
        )
    return rows.action


def _replay_buffer(buffer: Any) -> Any:
    try:
        from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        raise MissingExtra("stable-baselines3", "sb3", "a Stable-Baselines3 replay buffer") from None
    if not isinstance(buffer, ReplayBuffer):
        raise FormatError(
            f"expected a ReplayBuffer or DictReplayBuffer of Stable-Baselines3, got {type(buffer).__name__}; "
            "of a model pass model.replay_buffer, and on-policy algorithms keep no transitions"
        )
    return buffer


def _check_appendable(buffer: Any) -> None:
    from stable_baselines3 import HerReplayBuffer

    kind = type(buffer).__name__
    if hasattr(buffer, "transitions"):
        raise FormatError(f"{kind} keeps rows in its own way: give them to its `replay.add`")
    if isinstance(buffer, HerReplayBuffer) or hasattr(buffer, "n_steps"):
        raise FormatError(f"{kind} combines the steps of an episode, which rows alone do not form: use a ReplayBuffer")
    if buffer.optimize_memory_usage:
        raise FormatError(
            f"this {kind} has optimize_memory_usage=True and takes the next row's observation for the next one; "
            "rows that do not follow each other need optimize_memory_usage=False"
        )
