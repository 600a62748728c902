"""Tasks of the dm_control suite that can be set to the state of an observation.

The suite is used without shimmy, because shimmy would halve its speed. Observations are flat, as
`gymnasium.wrappers.FlattenObservation` flattens shimmy's dictionary: its entries are sorted by name. So a hopper's
`touch` comes before its `velocity`, and a walker's `height` before its `orientations`.

Some tasks are not supported. Quadruped, humanoid, fish and dog do not observe their whole orientation. The hard point
mass has random motor gains, and lqr has random springs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.making import blown_up, forget, import_suite, quiet_mujoco

Array = NDArray[Any]
Entries = Mapping[str, Array]
Place = Callable[[Any, Entries], None]
"""A function that sets positions, velocities and target of a physics object from the entries of an observation."""

PREFIX = "dm_control/"


class SuiteTask:
    """A task of the dm_control suite with the interface of `tasks.Task`."""

    def __init__(self, env: Any, place: Place) -> None:
        self.physics = env.physics
        self._place, self._task = place, env.task
        self._places: dict[str, slice] = {}
        self.columns = 0
        for name, spec in sorted(env.observation_spec().items()):
            start, self.columns = self.columns, self.columns + math.prod(spec.shape)
            self._places[name] = slice(start, self.columns)
        self._substeps = round(env.control_timestep() / env.physics.timestep())
        env.reset()
        self.action_shape = tuple(env.action_spec().shape)

    def place(self, observation: Array, action: Any) -> bool:
        """Set the simulator to the state of `observation`, before `action`. Return False if it is not a valid state."""
        import mujoco

        physics = self.physics
        forget(physics.data, action)
        self._place(physics, {name: observation[columns] for name, columns in self._places.items()})
        # A step of the suite ends with the first half of MuJoCo's next step, so a placed state needs this half too.
        mujoco.mj_step1(physics.model.ptr, physics.data.ptr)
        return not blown_up(physics.data)

    def step(self, action: Any) -> tuple[Array, float, bool] | None:
        """Return next observation, reward, and whether the state is terminal, or None if the simulation is unstable."""
        from dm_control.rl.control import PhysicsError

        try:
            self._task.before_step(action, self.physics)
            self.physics.step(self._substeps)
        except PhysicsError:
            return None
        self._task.after_step(self.physics)
        reward = float(self._task.get_reward(self.physics))
        seen = self._task.get_observation(self.physics)
        following = np.concatenate([np.ravel(seen[name]) for name in self._places])
        return following, reward, self._task.get_termination(self.physics) == 0.0

    def frame(self, width: int, height: int) -> Array:
        """Render the state with the task's first camera."""
        frame: Array = self.physics.render(height=height, width=width, camera_id=0)
        return frame


@contextmanager
def task(env_id: str) -> Iterator[SuiteTask]:
    """Open the task `env_id` of `TASKS`, and close it when the block ends."""
    place = TASKS[env_id]
    import_suite(env_id)
    from dm_control import suite

    domain, name = env_id.removeprefix(PREFIX).removesuffix("-v0").split("-")
    with quiet_mujoco():
        env = suite.load(domain, name, task_kwargs={"random": 0})
        try:
            yield SuiteTask(env, place)
        finally:
            env.close()


def _whole(physics: Any, seen: Entries) -> None:
    """Set a state that is observed as a whole, except for its first positions.

    Neither dynamics nor rewards depend on the first positions, so they are set to 0.
    """
    hidden = physics.model.nq - len(seen["position"])
    physics.data.qpos[:hidden] = 0.0
    physics.data.qpos[hidden:] = seen["position"]
    physics.data.qvel[:] = seen["velocity"]


def _reacher(physics: Any, seen: Entries) -> None:
    _whole(physics, seen)
    _set_target(physics, "finger", seen["to_target"])


def _swimmer(physics: Any, seen: Entries) -> None:
    """Set the state of a swimmer. Its observations are relative to the head, so the head is placed at the origin.

    The dynamics do not depend on the place of the head, because the water is the same everywhere.
    """
    speeds = seen["body_velocities"].reshape(-1, 3)  # x, y and turning speed of each link, the head first
    x, y, turning = speeds[0]
    to_hinge = -physics.model.jnt_pos[2, 1]  # the root rotates about a point behind the centre of the head
    physics.data.qpos[:] = np.concatenate([np.zeros(3), seen["joints"]])
    physics.data.qvel[:] = np.concatenate([[x + to_hinge * turning, y, turning], np.diff(speeds[:, 2])])
    _set_target(physics, "nose", seen["to_target"])


def _set_target(physics: Any, tip: str, to_target: Array) -> None:
    """Place the target at the offset `to_target` (2,) from the geom `tip`."""
    import mujoco

    mujoco.mj_kinematics(physics.model.ptr, physics.data.ptr)
    target, tip_id = physics.model.name2id("target", "geom"), physics.model.name2id(tip, "geom")
    physics.model.geom_pos[target, :2] = physics.data.geom_xpos[tip_id, :2] + to_target


def _finger(physics: Any, seen: Entries) -> None:
    x, z = seen["position"][2:]
    physics.data.qpos[:] = *seen["position"][:2], -math.atan2(x, z)
    physics.data.qvel[:] = seen["velocity"]
    if "target_position" in seen:
        target = physics.model.name2id("target", "site")
        spinner = physics.model.body_pos[physics.model.name2id("spinner", "body")]
        physics.model.site_pos[target, [0, 2]] = spinner[[0, 2]] + seen["target_position"]


def _cart_pole(physics: Any, seen: Entries) -> None:
    cosines, sines = seen["position"][1:].reshape(-1, 2).T
    physics.data.qpos[0] = seen["position"][0]
    _set_hinges(physics, np.arctan2(sines, cosines))
    physics.data.qvel[:] = seen["velocity"]


def _pendulum(physics: Any, seen: Entries) -> None:
    cosine, sine = seen["orientation"]
    physics.data.qpos[:] = math.atan2(sine, cosine)
    physics.data.qvel[:] = seen["velocity"]


def _acrobot(physics: Any, seen: Entries) -> None:
    sines, cosines = seen["orientations"].reshape(2, -1)
    _set_hinges(physics, np.arctan2(sines, cosines))
    physics.data.qvel[:] = seen["velocity"]


def _walker(physics: Any, seen: Entries) -> None:
    cosines, sines = seen["orientations"].reshape(-1, 2).T
    _set_hinges(physics, np.arctan2(sines, cosines))
    physics.data.qpos[0] = seen["height"][0] - physics.model.body_pos[1, 2]
    physics.data.qpos[1] = 0.0  # position along the floor: not observed, and without effect on the dynamics
    physics.data.qvel[:] = seen["velocity"]


def _set_hinges(physics: Any, angles: Array) -> None:
    """Set the joint angles of a planar model from the angles (about y) of its last bodies in world coordinates.

    The angle of a joint is the angle between its two bodies. It is only known up to whole turns, so the value nearest
    to the middle of the joint's range is used.
    """
    places, bodies, parents, signs, middles = _hinges(physics.model)
    to_world = np.concatenate([np.zeros(physics.model.nbody - len(angles)), angles])
    between = (to_world[bodies] - to_world[parents]) * signs
    turns = np.round((between - middles) / (2 * np.pi))
    physics.data.qpos[places] = between - 2 * np.pi * turns


@lru_cache(maxsize=1)
def _hinges(model: Any) -> tuple[Array, Array, Array, Array, Array]:
    """Return for each hinge: index in `qpos`, body, parent body, sign of its axis, and middle of its range."""
    joints = np.flatnonzero(model.jnt_type == 3)  # mjJNT_HINGE
    bodies = model.jnt_bodyid[joints]
    parents, signs = model.body_parentid[bodies], model.jnt_axis[joints, 1]
    return model.jnt_qposadr[joints], bodies, parents, signs, model.jnt_range[joints].mean(1)


_DOMAINS: dict[str, tuple[Place, tuple[str, ...]]] = {
    "acrobot": (_acrobot, ("swingup", "swingup_sparse")),
    "ball_in_cup": (_whole, ("catch",)),
    "cartpole": (
        _cart_pole,
        ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    ),
    "cheetah": (_whole, ("run",)),
    "finger": (_finger, ("spin", "turn_easy", "turn_hard")),
    "hopper": (_whole, ("stand", "hop")),
    "humanoid": (_whole, ("run_pure_state",)),
    "pendulum": (_pendulum, ("swingup",)),
    "point_mass": (_whole, ("easy",)),
    "reacher": (_reacher, ("easy", "hard")),
    "swimmer": (_swimmer, ("swimmer6", "swimmer15")),
    "walker": (_walker, ("stand", "walk", "run")),
}

TASKS: dict[str, Place] = {
    f"{PREFIX}{domain}-{name}-v0": place for domain, (place, names) in _DOMAINS.items() for name in names
}
"""The supported tasks, by their id in shimmy. Their whole state can be derived from the observation."""
