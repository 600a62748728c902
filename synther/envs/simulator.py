"""The truth behind a row: put the simulator into the recorded state, take the recorded action, see what follows.

It answers how far generated next observations and rewards are from what physics would have done.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.envs.making import opened
from synther.errors import DataError, SyntherError
from synther.progress import Progress, resolve

Array = NDArray[Any]
Place = Callable[[Any, Array, Any], None]
"""Puts an unwrapped environment into the state one observation shows, about to take one action."""

CHUNK_ROWS = 2_000
"""Half a second of work: short enough for a progress bar, long enough to be worth sending to another process."""


def _mujoco(positions: int, hidden: int = 0) -> Place:
    """`hidden` coordinates of the position are not observed. The physics does not depend on them, and rewards only on
    how they change, so that they may start at 0. The rest of the observation is velocities."""

    def place(env: Any, observation: Array, action: Any) -> None:
        data = env.data
        data.time = 0.0
        # The solver starts from its last solution: without this a row would depend on the row before it.
        data.qacc_warmstart[:] = 0.0
        data.ctrl[:] = action
        for warning in data.warning:
            warning.number = 0
        env.set_state(np.concatenate([np.zeros(hidden), observation[:positions]]), observation[positions:])

    return place


def _pendulum(env: Any, observation: Array, action: Any) -> None:
    cosine, sine, speed = observation
    env.state = np.array([math.atan2(sine, cosine), speed])


def _cart_pole(env: Any, observation: Array, action: Any) -> None:
    env.state = observation
    env.steps_beyond_terminated = None


def _mountain_car(env: Any, observation: Array, action: Any) -> None:
    env.state = observation.astype(np.float32)


_TASKS: dict[str, Place] = {
    "Hopper-v4": _mujoco(5, hidden=1),
    "Hopper-v5": _mujoco(5, hidden=1),
    "Walker2d-v4": _mujoco(8, hidden=1),
    "Walker2d-v5": _mujoco(8, hidden=1),
    "HalfCheetah-v4": _mujoco(8, hidden=1),
    "HalfCheetah-v5": _mujoco(8, hidden=1),
    "Swimmer-v4": _mujoco(3, hidden=2),
    "Swimmer-v5": _mujoco(3, hidden=2),
    "InvertedPendulum-v4": _mujoco(2),
    "InvertedPendulum-v5": _mujoco(2),
    "Pendulum-v1": _pendulum,
    "CartPole-v0": _cart_pole,
    "CartPole-v1": _cart_pole,
    "MountainCarContinuous-v0": _mountain_car,
}

SUPPORTED = tuple(_TASKS)
"""Gymnasium ids whose whole state follows from the observation."""


def simulate(
    env_id: str,
    observations: ArrayLike,
    actions: ArrayLike,
    *,
    processes: int | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Array, Array, Array]:
    """The next observations (N, O), rewards (N,), both float64, and terminals (N,) that `env_id` itself gives.

    `observations` are (N, O), `actions` (N, A) or (N,) integers. Hopper and Walker2d clip observed velocities to
    [-10, 10]: a row that stands at the clip does not tell its state, and its answer is only near. A row that blows
    the simulator up comes back as NaN. The work is spread over `processes` (None: all cores, if there is enough of
    it; 1: none beside this one); the result does not depend on how many.
    """
    if env_id not in _TASKS:
        raise DataError(f"cannot put {env_id!r} into a recorded state: expected one of {', '.join(SUPPORTED)}")
    if processes is not None and processes < 1:
        raise DataError(f"processes must be at least 1, got {processes}")
    observations, actions = np.asarray(observations), np.asarray(actions)
    _check(env_id, observations, actions)
    starts = range(0, len(observations), CHUNK_ROWS)
    chunks = [(env_id, observations[at : at + CHUNK_ROWS], actions[at : at + CHUNK_ROWS]) for at in starts]
    workers = min(_cores() if processes is None else processes, len(chunks))
    answers = []
    with resolve(progress or False).phase(f"simulate {env_id}", len(observations)) as phase:
        for answer in map(_chunk, chunks) if workers <= 1 else _spread(chunks, workers):
            answers.append(answer)
            phase.advance(len(answer[1]))
    following, rewards, terminals = zip(*answers, strict=True)
    return np.concatenate(following), np.concatenate(rewards), np.concatenate(terminals)


def _check(env_id: str, observations: Array, actions: Array) -> None:
    with opened(env_id) as env:
        columns, shape = env.observation_space.shape[0], env.action_space.shape
    if observations.ndim != 2 or observations.shape[1] != columns or not len(observations):
        raise DataError(f"{env_id}: expected observations of shape (rows, {columns}), got {observations.shape}")
    if actions.shape != (len(observations), *shape):
        raise DataError(f"{env_id}: expected actions of shape {(len(observations), *shape)}, got {actions.shape}")
    if not np.isfinite(observations).all() or not np.isfinite(actions).all():
        raise DataError(f"{env_id}: expected finite observations and actions, got NaN or infinity")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(chunks: list[tuple[str, Array, Array]], workers: int) -> Iterator[tuple[Array, Array, Array]]:
    # Not forked: the caller may hold threads of torch, which a fork would leave locked.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(_chunk, chunks)
        except BrokenProcessPool:
            raise SyntherError(
                "a simulator process died before its work was done: put the body of your script under "
                "`if __name__ == '__main__':`, free some memory, or pass processes=1"
            ) from None


def _chunk(work: tuple[str, Array, Array]) -> tuple[Array, Array, Array]:
    env_id, observations, actions = work
    place = _TASKS[env_id]
    following = np.empty(observations.shape)
    rewards = np.empty(len(observations))
    terminals = np.zeros(len(observations), bool)
    with opened(env_id) as wrapped:
        env = wrapped.unwrapped
        env.reset(seed=0)
        physics = getattr(env, "data", None)
        for row, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
            place(env, observation, action)
            following[row], rewards[row], terminals[row], _, _ = env.step(action)
            if physics is not None and _blown_up(physics):
                following[row] = rewards[row] = np.nan
    return following, rewards, terminals


def _blown_up(physics: Any) -> bool:
    """Whether MuJoCo met a position, velocity or acceleration it could not go on from (and silently started over)."""
    import mujoco

    kinds = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
    return any(physics.warning[kind].number for kind in kinds)
