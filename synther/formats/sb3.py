"""Read and write replay buffer objects of Stable-Baselines3.

Off-policy algorithms of Stable-Baselines3 store Box actions rescaled to [-1, 1]. `read` converts them to actions of the
environment, as in all other formats, and `write` rescales them again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from synther.data import gym_spaces, spaces
from synther.data.transitions import Array, RowSource, Transitions
from synther.errors import ConfigError, DataError, FormatError, MissingExtra
from synther.formats.writing import Stream

Actions = Literal["scaled", "raw"]
"""How a buffer stores Box actions: rescaled to [-1, 1], or in the units of the environment."""

_log = logging.getLogger(__name__)


def read(source: Any, actions: Actions | None = None) -> Transitions:
    """Read all valid rows, one environment after the other, each from its oldest row to its newest.

    `actions` says how the buffer stores Box actions. "scaled": in [-1, 1], as the algorithms of Stable-Baselines3 do
    it; they are converted to the action space of the environment. "raw": in the units of the environment; they are not
    changed. By default, actions count as scaled if all of them lie in [-1, 1], and a warning says so.
    """
    if actions not in (None, *get_args(Actions)):
        raise ConfigError(f"actions must be one of {', '.join(get_args(Actions))}, got {actions!r}")
    buffer = _replay_buffer(source)
    return _in_own_units(stored(buffer), buffer.action_space, actions)


def stored(buffer: Any, *, cuts: bool = False) -> Transitions:
    """Return all valid rows in the order of `read`, with actions in the units of the buffer.

    With `cuts`, every row that does not lead to the next row becomes a timeout, even if the buffer does not record time
    limits.
    """
    steps = _steps(buffer)
    rows = len(steps) * buffer.n_envs
    dones = _by_env(buffer.dones, steps).astype(bool)
    timeouts = _by_env(buffer.timeouts, steps).astype(bool)
    action = gym_spaces.actions(buffer.action_space, _by_env(buffer.actions, steps))
    observation = _observations(buffer, buffer.observations, steps, rows)
    following = _next_observations(buffer, steps, rows)
    known = buffer.handle_timeout_termination or cuts
    if known:
        meeting = np.arange(1, rows) % len(steps) == 0
        # Timeouts at the boundary between two environments, and at resets within an episode, as `learn` does them.
        timeouts[:-1] |= (meeting | (following[:-1] != observation[1:]).any(1)) & ~dones[:-1]
    return Transitions(
        observation=observation,
        action=action,
        reward=_by_env(buffer.rewards, steps),
        next_observation=following,
        terminal=dones & ~timeouts,
        timeout=timeouts if known else None,
        observation_space=gym_spaces.observation_space(buffer.observation_space),
    )


def places(buffer: Any) -> Array:
    """Return where each row of `stored` is in the buffer, as one number: step * n_envs + environment."""
    numbers = _steps(buffer)[None] * int(buffer.n_envs) + np.arange(buffer.n_envs)[:, None]
    return numbers.reshape(-1)


def _steps(buffer: Any) -> Array:
    """Return the positions of the valid steps in the ring buffer, oldest first."""
    if not buffer.full:
        steps = np.arange(buffer.pos)
    else:
        steps = (buffer.pos + np.arange(buffer.buffer_size)) % buffer.buffer_size
        if buffer.optimize_memory_usage:
            steps = steps[1:]  # the observation of the oldest step was overwritten by the newest next observation
    if len(steps) == 0:
        raise DataError("the replay buffer holds no complete row: expected at least one transition")
    return steps


def _by_env(array: Array, steps: Array) -> Array:
    """Select `steps` from an array (buffer_size, n_envs, ...) and reshape to (n_envs * steps, ...)."""
    picked = array[steps].swapaxes(0, 1)
    return picked.reshape(picked.shape[0] * picked.shape[1], *picked.shape[2:])


def _observations(buffer: Any, stored: Any, steps: Array, rows: int) -> Array:
    """Return the observations of `steps`, flattened to (rows, O)."""
    if isinstance(stored, dict):
        values: Any = {key: _by_env(array, steps) for key, array in stored.items()}
    else:
        values = _by_env(stored, steps)
    return gym_spaces.flatten(buffer.observation_space, values, rows)


def _next_observations(buffer: Any, steps: Array, rows: int) -> Array:
    """Return the next observations of `steps`, flattened to (rows, O)."""
    if not buffer.optimize_memory_usage:
        return _observations(buffer, buffer.next_observations, steps, rows)
    following = _observations(buffer, buffer.observations, (steps + 1) % buffer.buffer_size, rows)
    # For the last row of an episode, this is the first observation of the next episode. So the row's own observation is
    # used instead, as in episodes.pair. Only the newest row still has its true next observation.
    ended = buffer.dones[steps].astype(bool)  # (steps, n_envs)
    ended[-1] = False
    ended = ended.T.reshape(-1)
    if ended.any():
        _log.info("optimize_memory_usage: the next observations of %d last rows of episodes are lost", np.sum(ended))
        following[ended] = _observations(buffer, buffer.observations, steps, rows)[ended]
    return following


def _in_own_units(rows: Transitions, space: Any, actions: Actions | None) -> Transitions:
    """Return `rows` with actions in the units of the environment, and with its action space."""
    own = gym_spaces.action_space(space)
    box = own[0]
    if not isinstance(box, spaces.Box) or rows.action.dtype.kind != "f":
        return replace(rows, action_space=gym_spaces.believed(own, rows.action))
    low, high = np.asarray(box.low), np.asarray(box.high)
    beyond = _beyond_one(rows.action)
    if actions == "scaled" and beyond:
        raise DataError(
            f"the replay buffer holds the action {rows.action[_farthest(rows.action)].tolist()}: with "
            "actions='scaled', all actions must lie in [-1, 1]; pass actions='raw'"
        )
    same = (low == -1).all() and (high == 1).all()
    if actions == "raw" or beyond or same or not np.isfinite([low, high]).all():
        return replace(rows, action_space=gym_spaces.believed(own, rows.action))
    if actions is None:
        _log.warning(
            "all actions of the replay buffer lie in [-1, 1], as Stable-Baselines3 stores them: they are converted to "
            "the action space of the environment, from %s to %s. Pass actions='scaled' to read() to confirm this, or "
            "actions='raw' if the buffer was filled with actions of the environment",
            low.tolist(),
            high.tolist(),
        )
    action = np.clip(low + 0.5 * (rows.action.astype(np.float64) + 1) * (high - low), low, high)
    return replace(rows, action=action.astype(rows.action.dtype), action_space=own)


def _farthest(action: Array) -> int:
    """Return the index of the action with the largest absolute value."""
    return int(np.argmax(np.abs(action).max(axis=1)))


def _beyond_one(action: Array) -> bool:
    """Return whether an action lies outside [-1, 1], apart from rounding."""
    return bool((np.abs(action) > 1 + 1e-6).any())


def write(rows: RowSource, target: Any) -> None:
    """Append rows to a replay buffer. If it has several environments, consecutive rows go to them in turn."""
    buffer = _replay_buffer(target)
    _check_appendable(buffer)
    stream = Stream(rows)
    stream.first.refuse_extra("a replay buffer of Stable-Baselines3")
    if stream.rows % buffer.n_envs:
        fitting = stream.rows // buffer.n_envs * buffer.n_envs
        raise DataError(
            f"{stream.rows:,} rows cannot be divided evenly among the {buffer.n_envs} environments of the buffer: "
            f"pass {fitting:,} rows"
        )
    stream.chunk_rows = max(1, stream.chunk_rows // buffer.n_envs) * buffer.n_envs
    expected = gym_spaces.width(buffer.observation_space), int(buffer.action_dim)
    got = stream.first.observation.shape[1], int(np.prod(stream.first.action.shape[1:]))
    if got != expected:
        raise DataError(
            f"the rows have {got[0]} observation and {got[1]} action columns, but the replay buffer has {expected[0]} "
            f"and {expected[1]}: use rows of the same environment"
        )
    discrete = gym_spaces.action_space(buffer.action_space)
    for part in stream.parts():
        if not any(isinstance(one, spaces.Box) for one in discrete):
            spaces.check(discrete, part.action.reshape(len(part), -1), "action")
        _append(buffer, part)


def _append(buffer: Any, rows: Transitions) -> None:
    """Write `rows` to the next positions of the ring buffer."""
    size, envs = buffer.buffer_size, buffer.n_envs
    steps = len(rows) // envs
    kept = min(steps, size)  # the other steps would be overwritten by later steps of the same call
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
    """Return actions in the units of the buffer: [-1, 1] as in Stable-Baselines3, or those of the environment."""
    own = gym_spaces.action_space(buffer.action_space)[0]
    if not isinstance(own, spaces.Box) or own == spaces.Box.uniform(-1, 1, own.width) or _beyond_one(buffer.actions):
        return rows.action
    if rows.action_space == (own,) and np.isfinite([own.low, own.high]).all():
        low, high = np.asarray(own.low), np.asarray(own.high)
        return np.asarray(2 * (rows.action - low) / np.where(high > low, high - low, 1) - 1, buffer.actions.dtype)
    if _beyond_one(rows.action):
        raise DataError(
            "actions lie outside [-1, 1], but Stable-Baselines3 stores actions rescaled to [-1, 1]: give the rows the "
            "action space of the environment (rows.with_spaces(action=...)), so that they can be rescaled"
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
            "if it is a model, pass model.replay_buffer; on-policy algorithms do not keep transitions"
        )
    return buffer


def _check_appendable(buffer: Any) -> None:
    from stable_baselines3 import HerReplayBuffer

    kind = type(buffer).__name__
    if isinstance(buffer, HerReplayBuffer) or hasattr(buffer, "n_steps"):
        raise FormatError(f"{kind} combines the steps of an episode, but rows do not form episodes: use a ReplayBuffer")
    if buffer.optimize_memory_usage:
        raise FormatError(
            f"this {kind} has optimize_memory_usage=True, so it reads next observations from the next row; "
            "rows that do not follow each other need optimize_memory_usage=False"
        )
