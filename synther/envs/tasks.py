"""One interface for all tasks of Gymnasium and the dm_control suite that can be set to a recorded state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from numpy.typing import NDArray

from synther.envs import gymnasium_tasks, suite_tasks
from synther.errors import DataError

Array = NDArray[Any]

SUPPORTED = (*gymnasium_tasks.TASKS, *suite_tasks.TASKS)
"""Ids of all supported tasks, as in Gymnasium and shimmy. Their whole state can be derived from the observation."""


class Task(Protocol):
    """A simulator that can be set to a recorded state."""

    columns: int
    """Number of columns of an observation."""
    action_shape: tuple[int, ...]

    def place(self, observation: Array, action: Any) -> bool:
        """Set the simulator to the state of `observation`, before `action`. Return False if it is not a valid state."""

    def step(self, action: Any) -> tuple[Array, float, bool] | None:
        """Return next observation, reward, and whether the state is terminal, or None if the simulation is unstable."""

    def frame(self, width: int, height: int) -> Array:
        """Render the state as an image (H, W, 3). The task must have been opened with `drawn`."""


@contextmanager
def opened_task(
    env_id: str, options: Mapping[str, Any] | None = None, drawn: tuple[int, int] | None = None
) -> Iterator[Task]:
    """Open the task `env_id`, and close it when the block ends.

    `options` are the options of the environment. A time limit among them is ignored, because it does not change steps.
    `drawn` is the width and height of frames (None: no frames).
    """
    require(env_id)
    others = {name: value for name, value in (options or {}).items() if name != "max_episode_steps"}
    if env_id in suite_tasks.TASKS:
        if others:
            raise DataError(f"cannot set {env_id!r} to a recorded state: it was made with the options {others}")
        with suite_tasks.task(env_id) as task:
            yield task
    else:
        with gymnasium_tasks.task(env_id, others, drawn) as task:
            yield task


def supports(env_id: str) -> bool:
    """Return whether `env_id` can be set to a recorded state. Its library may not be installed."""
    return env_id in SUPPORTED


def describe(env_id: str) -> str:
    """Return a readable name: "Walker2d-v5 in MuJoCo", "Pendulum-v1 in Gymnasium" or "dm_control cheetah-run"."""
    require(env_id)
    if env_id in suite_tasks.TASKS:
        return "dm_control " + env_id.removeprefix(suite_tasks.PREFIX).removesuffix("-v0")
    return f"{env_id} in {'Gymnasium' if env_id in gymnasium_tasks.CLASSIC else 'MuJoCo'}"


def require(env_id: str) -> None:
    """Raise an error if a task is not supported. The message lists the supported tasks."""
    if supports(env_id):
        return
    full_id = f"{suite_tasks.PREFIX}{env_id.removeprefix(suite_tasks.PREFIX)}-v0"
    if supports(full_id):
        raise DataError(f"cannot set {env_id!r} to a recorded state: the id of this task is {full_id!r}")
    raise DataError(
        f"cannot set {env_id!r} to a recorded state: its observations do not contain the whole state, or the task is "
        f"not supported; expected one of {', '.join(SUPPORTED)}"
    )
