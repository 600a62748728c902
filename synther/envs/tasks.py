"""Every task that can be put into a recorded state, of Gymnasium and of the dm_control suite, behind one interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from numpy.typing import NDArray

from synther.envs import gymnasium_tasks, suite_tasks
from synther.errors import DataError

Array = NDArray[Any]

SUPPORTED = (*gymnasium_tasks.TASKS, *suite_tasks.TASKS)
"""Ids of the tasks whose whole state follows from the observation, as Gymnasium and shimmy spell them."""


class Task(Protocol):
    columns: int
    """Of an observation."""
    action_shape: tuple[int, ...]

    def place(self, observation: Array, action: Any) -> bool:
        """Into the state `observation` shows, about to take `action`; False where there is no such state."""

    def step(self, action: Any) -> tuple[Array, float, bool] | None:
        """The next observation, the reward and whether the episode is over; None where the simulator gave up."""

    def frame(self, width: int, height: int) -> Array:
        """The state as an (H, W, 3) picture, for a task opened with `drawn`."""


@contextmanager
def opened_task(
    env_id: str, options: Mapping[str, Any] | None = None, drawn: tuple[int, int] | None = None
) -> Iterator[Task]:
    """The task `env_id`, closed when the block ends; `drawn`: the width and height of its frames, if any are wanted.

    `options` are what it was made with beside its id. A limit on its steps changes no step.
    """
    require(env_id)
    others = {name: value for name, value in (options or {}).items() if name != "max_episode_steps"}
    if env_id in suite_tasks.TASKS:
        if others:
            raise DataError(f"cannot put {env_id!r} into a recorded state: it was made with options, {others}")
        with suite_tasks.task(env_id) as task:
            yield task
    else:
        with gymnasium_tasks.task(env_id, others, drawn) as task:
            yield task


def supports(env_id: str) -> bool:
    """Whether `env_id` can be put into a recorded state (its library may still have to be installed)."""
    return env_id in SUPPORTED


def describe(env_id: str) -> str:
    """For people: "Walker2d-v5 in MuJoCo", "Pendulum-v1 in Gymnasium", "dm_control cheetah-run"."""
    require(env_id)
    if env_id in suite_tasks.TASKS:
        return "dm_control " + env_id.removeprefix(suite_tasks.PREFIX).removesuffix("-v0")
    return f"{env_id} in {'Gymnasium' if env_id in gymnasium_tasks.CLASSIC else 'MuJoCo'}"


def require(env_id: str) -> None:
    """Refuse a task whose state is not known from its observation, naming those that are."""
    if supports(env_id):
        return
    spelt = f"{suite_tasks.PREFIX}{env_id.removeprefix(suite_tasks.PREFIX)}-v0"
    if supports(spelt):
        raise DataError(f"cannot put {env_id!r} into a recorded state: spell it {spelt!r}")
    raise DataError(
        f"cannot put {env_id!r} into a recorded state: its observation does not tell all of its state, or nobody has "
        f"taught us how; expected one of {', '.join(SUPPORTED)}"
    )
