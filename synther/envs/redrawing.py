"""Frames of an episode of which only the states were recorded: the simulator is put into each, and drawn.

A cheetah, a hopper or a walker does not observe how far it has come, yet the floor shows it in every frame. The
simulator is asked how far each action took it, so the floor moves as it did.
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
"""Place, among the positions, of the one along the floor."""

_LOST = ("swimmer",)
"""It observes everything from its own head: where it is, and which way it looks, nobody knows."""


def check_redrawable(env_id: str | None) -> None:
    """Refuse a task whose frames do not follow from its observations, and one whose library is not here."""
    drawn = [name for name in TASKS if _domain(name) not in _LOST]
    if env_id is None or env_id not in drawn:
        raise DataError(
            f"the frames of {env_id} do not follow from its observations: expected one of {', '.join(drawn)}; else let "
            "a policy act while frames are recorded (--policy)"
        )
    import_suite(env_id)


def redraw(env_id: str, observations: Array, actions: Array, size: int, backend: str) -> NDArray[np.uint8]:
    """The frames (T + 1, 3, size, size) of one episode, of its `observations` (T + 1, O) and `actions` (T, A).

    Task and camera stay open for as long as this process lives.
    """
    held, camera = _held(env_id, size, backend)
    if observations.shape[1:] != (held.columns,) or actions.shape[1:] != held.action_shape:
        expected = f"{held.columns} observation columns and {held.action_shape[0]} actions"
        raise DataError(f"{env_id} has {expected}, got {observations.shape[1:]} and {actions.shape[1:]}")
    along = _ALONG.get(_domain(env_id))
    frames = np.empty((len(observations), 3, size, size), np.uint8)
    here = 0.0
    for record, observation in enumerate(observations.astype(np.float64)):
        last = record == len(actions)
        action = np.zeros(held.action_shape) if last else actions[record].astype(np.float64)
        if not held.place(observation, action):
            raise DataError(f"{env_id}: record {record} of an episode is no state the simulator can be in")
        if along is not None:
            _move(held, along, here)
        frames[record] = camera.frame(held.physics.data.ptr)
        if along is not None and not last:
            if held.step(action) is None:
                raise DataError(f"{env_id}: the simulator gave up at record {record} of an episode")
            here = float(held.physics.data.qpos[along])
    return frames


def _move(held: SuiteTask, along: int, here: float) -> None:
    import mujoco

    held.physics.data.qpos[along] = here
    mujoco.mj_fwdPosition(held.physics.model.ptr, held.physics.data.ptr)


def _domain(env_id: str) -> str:
    return env_id.removeprefix(PREFIX).partition("-")[0]


@cache
def _held(env_id: str, size: int, backend: str) -> tuple[SuiteTask, Camera]:
    stack = ExitStack()
    atexit.register(stack.close)
    opened = stack.enter_context(task(env_id))
    camera = Camera(opened.physics.model.ptr, 0, size, backend)
    stack.callback(camera.close)
    return opened, camera
