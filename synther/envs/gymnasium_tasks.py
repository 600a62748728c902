"""Gymnasium tasks that can be set to the state of an observation.

Pusher is not supported, because it does not observe the velocity of its object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.making import blown_up, forget, opened
from synther.errors import DataError

Array = NDArray[Any]
Place = Callable[[Any, Array], None]
"""A function that sets an unwrapped environment to the state of one observation."""


class GymnasiumTask:
    """A task of Gymnasium with the interface of `tasks.Task`."""

    def __init__(self, env: Any, place: Place) -> None:
        self._env, self._place = env.unwrapped, place
        self._physics = getattr(self._env, "data", None)
        self._env.reset(seed=0)
        self.columns = int(env.observation_space.shape[0])
        self.action_shape = tuple(env.action_space.shape)

    def place(self, observation: Array, action: Any) -> bool:
        """Set the simulator to the state of `observation`, before `action`. Return False if it is not a valid state."""
        if self._physics is not None:
            forget(self._physics, action)
        self._place(self._env, observation)
        return self._physics is None or not blown_up(self._physics)

    def step(self, action: Any) -> tuple[Array, float, bool] | None:
        """Return next observation, reward, and whether the state is terminal, or None if the simulation is unstable."""
        following, reward, terminal, _, _ = self._env.step(action)
        if self._physics is not None and blown_up(self._physics):
            return None
        return following, float(reward), bool(terminal)

    def frame(self, width: int, height: int) -> Array:
        """Render the state in the size that the environment has. The task must have been opened with `drawn`."""
        frame: Array = self._env.render()
        return frame


@contextmanager
def task(
    env_id: str, options: Mapping[str, Any] | None = None, drawn: tuple[int, int] | None = None
) -> Iterator[GymnasiumTask]:
    """Open the task `env_id` of `TASKS` with `options`. `drawn` is the width and height of frames (None: no frames)."""
    place, arguments = TASKS[env_id], dict(options or {})
    if drawn is not None:
        arguments["render_mode"] = "rgb_array"
        if env_id not in CLASSIC:
            arguments.update(width=drawn[0], height=drawn[1])
    with opened(env_id, **arguments) as env:
        if options:
            with opened(env_id) as plain:
                if plain.observation_space.shape != env.observation_space.shape:
                    raise DataError(f"cannot set {env_id!r} to a recorded state: {options} change what is observed")
        yield GymnasiumTask(env, place)


def _mujoco(positions: int, velocities: int, hidden: int = 0) -> Place:
    """Return a function for a MuJoCo task with observed `positions` and `velocities` as its first columns.

    The first `hidden` positions of the simulator are not observed. They are set to 0, because the dynamics do not
    depend on them and rewards only depend on their change. Further columns are not part of the state.
    """

    def place(env: Any, observation: Array) -> None:
        position = np.concatenate([np.zeros(hidden), observation[:positions]])
        env.set_state(position, observation[positions : positions + velocities])

    return place


def _reacher(env: Any, observation: Array) -> None:
    angles = np.arctan2(observation[2:4], observation[:2])
    env.set_state(np.concatenate([angles, observation[4:6]]), np.concatenate([observation[6:8], np.zeros(2)]))
    # In v4, the reward uses the distance that MuJoCo computed before the step, which the observation contains.
    from_target = observation[8:]
    env.data.body("fingertip").xpos[: len(from_target)] = env.data.body("target").xpos[: len(from_target)] + from_target


def _double_pendulum(env: Any, observation: Array) -> None:
    angles = np.arctan2(observation[1:3], observation[3:5])
    env.set_state(np.concatenate([observation[:1], angles]), observation[5:8])


def _pendulum(env: Any, observation: Array) -> None:
    cosine, sine, speed = observation
    env.state = np.array([math.atan2(sine, cosine), speed])


def _acrobot(env: Any, observation: Array) -> None:
    env.state = np.concatenate([np.arctan2(observation[[1, 3]], observation[[0, 2]]), observation[4:]])


def _cart_pole(env: Any, observation: Array) -> None:
    env.state = observation
    env.steps_beyond_terminated = None


def _mountain_car(env: Any, observation: Array) -> None:
    env.state = observation


def _continuous_mountain_car(env: Any, observation: Array) -> None:
    env.state = observation.astype(np.float32)


CLASSIC: dict[str, Place] = {
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
    "CartPole-v0": _cart_pole,
    "CartPole-v1": _cart_pole,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _continuous_mountain_car,
}
"""Tasks that do not need MuJoCo."""

TASKS: dict[str, Place] = {
    "Hopper-v4": _mujoco(5, 6, hidden=1),
    "Hopper-v5": _mujoco(5, 6, hidden=1),
    "Walker2d-v4": _mujoco(8, 9, hidden=1),
    "Walker2d-v5": _mujoco(8, 9, hidden=1),
    "HalfCheetah-v4": _mujoco(8, 9, hidden=1),
    "HalfCheetah-v5": _mujoco(8, 9, hidden=1),
    "Swimmer-v4": _mujoco(3, 5, hidden=2),
    "Swimmer-v5": _mujoco(3, 5, hidden=2),
    "Ant-v4": _mujoco(13, 14, hidden=2),
    "Ant-v5": _mujoco(13, 14, hidden=2),
    "Humanoid-v4": _mujoco(22, 23, hidden=2),
    "Humanoid-v5": _mujoco(22, 23, hidden=2),
    "HumanoidStandup-v4": _mujoco(22, 23, hidden=2),
    "HumanoidStandup-v5": _mujoco(22, 23, hidden=2),
    "Reacher-v4": _reacher,
    "Reacher-v5": _reacher,
    "InvertedPendulum-v4": _mujoco(2, 2),
    "InvertedPendulum-v5": _mujoco(2, 2),
    "InvertedDoublePendulum-v4": _double_pendulum,
    "InvertedDoublePendulum-v5": _double_pendulum,
    **CLASSIC,
}
"""The supported tasks, by id. Their whole state can be derived from the observation."""
