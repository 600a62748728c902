"""Render the frames of an episode from its recorded states: the simulator is set to each state and rendered.

A cheetah, a hopper or a walker does not observe its position along the floor, but its frames show this position. So
each recorded action is simulated, to find how far the body moves.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.camera import Camera
from synther.envs.making import import_suite
from synther.envs.suite_tasks import PREFIX, TASKS, SuiteTask, task
from synther.errors import DataError

Array = NDArray[Any]

_ALONG = {"cheetah": 0, "hopper": 0, "walker": 1}
"""Index of the position along the floor among the positions of the simulator (`qpos`), by domain."""

_LOST = ("swimmer",)
"""Domains that cannot be rendered: all observations are relative to the head, so the pose of the head is unknown."""


def check_redrawable(env_id: str | None) -> str:
    """Return `env_id` if its frames can be rendered from its observations. Otherwise raise an error.

    Also raises an error if dm_control is not installed.
    """
    drawn = [name for name in TASKS if _domain(name) not in _LOST]
    if env_id is None or env_id not in drawn:
        raise DataError(
            f"the frames of {env_id} cannot be rendered from its observations: expected one of {', '.join(drawn)}; for "
            "other tasks, record frames while a policy acts (--policy)"
        )
    import_suite(env_id)
    return env_id


def redraw(
    env_id: str, observations: Array, actions: Array, size: int, backend: str, shadow_size: int | None = None
) -> NDArray[np.uint8]:
    """Render the frames (T + 1, 3, size, size) of one episode with `observations` (T + 1, O) and `actions` (T, A).

    The task and the camera stay open until this process ends.
    """
    held, camera = _held(env_id, size, backend, shadow_size)
    if observations.shape[1:] != (held.columns,) or actions.shape[1:] != held.action_shape:
        expected = f"{held.columns} observation columns and {held.action_shape[0]} actions"
        raise DataError(f"{env_id} has {expected}, got {observations.shape[1:]} and {actions.shape[1:]}")
    along = _ALONG.get(_domain(env_id))
    frames = np.empty((len(observations), 3, size, size), np.uint8)
    position = 0.0
    for record, observation in enumerate(observations.astype(np.float64)):
        last = record == len(actions)
        action = np.zeros(held.action_shape) if last else actions[record].astype(np.float64)
        if not held.place(observation, action):
            raise DataError(f"{env_id}: record {record} of an episode is not a valid state of the simulator")
        if along is not None:
            _move(held, along, position)
        frames[record] = camera.frame(held.physics.data.ptr)
        if along is not None and not last:
            if held.step(action) is None:
                raise DataError(f"{env_id}: the simulation became unstable at record {record} of an episode")
            position = float(held.physics.data.qpos[along])
    return frames


def _move(held: SuiteTask, along: int, position: float) -> None:
    """Move the body to a position along the floor, without changing its other positions."""
    import mujoco

    held.physics.data.qpos[along] = position
    mujoco.mj_fwdPosition(held.physics.model.ptr, held.physics.data.ptr)


def _domain(env_id: str) -> str:
    return env_id.removeprefix(PREFIX).partition("-")[0]


@cache
def _held(env_id: str, size: int, backend: str, shadow_size: int | None) -> tuple[SuiteTask, Camera]:
    """Open the task and its camera on the first call. They stay open until this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    opened = stack.enter_context(task(env_id))
    camera = Camera(opened.physics.model.ptr, 0, size, backend, shadow_size)
    stack.callback(camera.close)
    return opened, camera
