"""D4RL's bodies: capsules as MuJoCo before 2.1 weighed them.

MuJoCo 2.1 made the mass and inertia of capsules exact. Before, a capsule of radius r and half length h weighed as much
as a cylinder of height 2h + r. D4RL's data come from those bodies: today's simulator makes other steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synther.errors import ConfigError

OPTION = "capsules"
"""Option of an environment, beside those of `gymnasium.make`: `{"capsules": "old"}`."""
_OLD = "old"
_FIXED_TOTAL = "HalfCheetah"
"""The body whose XML sets the total mass: its masses are scaled to the same sum."""


def split(options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The options of `gymnasium.make` alone, and whether capsules are to weigh as before."""
    rest = dict(options)
    chosen = rest.pop(OPTION, None)
    if chosen not in (None, _OLD):
        raise ConfigError(f'the option {OPTION!r} of an environment must be "{_OLD}", got {chosen!r}')
    return rest, chosen == _OLD


def reweigh(env: Any, env_id: str) -> None:
    """Give the capsules of a MuJoCo environment their old masses and inertias."""
    model: Any = getattr(env.unwrapped, "model", None)
    if not hasattr(model, "geom_type"):
        raise ConfigError(f"{env_id} is no MuJoCo environment of Gymnasium: it has no capsules (option {OPTION!r})")
    import mujoco

    total = float(model.body_mass.sum())
    for body in range(model.nbody):
        first, count = int(model.body_geomadr[body]), int(model.body_geomnum[body])
        geoms = list(range(first, first + count))
        if model.body_mass[body] > 0 and any(model.geom_type[g] == mujoco.mjtGeom.mjGEOM_CAPSULE for g in geoms):
            _reweigh_body(model, body, geoms)
    if _FIXED_TOTAL in env_id:
        scale = total / float(model.body_mass.sum())
        model.body_mass *= scale
        model.body_inertia *= scale
    mujoco.mj_setConst(model, env.unwrapped.data)


def _reweigh_body(model: Any, body: int, geoms: list[int]) -> None:
    """The mass, centre and inertia of a body whose geoms have one density."""
    import mujoco

    exact = np.array([_volume(model, geom, exact=True) for geom in geoms])
    density = float(model.body_mass[body]) / exact.sum()
    mass = density * np.array([_volume(model, geom, exact=False) for geom in geoms])
    places = model.geom_pos[geoms]
    centre = mass @ places / mass.sum()
    inertia = np.zeros((3, 3))
    for geom, own, place in zip(geoms, mass, places, strict=True):
        turned = np.zeros(9)
        mujoco.mju_quat2Mat(turned, model.geom_quat[geom])
        matrix = turned.reshape(3, 3)
        apart = place - centre
        inertia += matrix @ np.diag(own * _unit_inertia(model, geom)) @ matrix.T
        inertia += own * (apart @ apart * np.eye(3) - np.outer(apart, apart))
    moments, axes = np.linalg.eigh(inertia)
    axes[:, 2] *= np.sign(np.linalg.det(axes))  # a rotation, not a reflection
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, axes.flatten())
    model.body_mass[body], model.body_ipos[body] = mass.sum(), centre
    model.body_inertia[body], model.body_iquat[body] = moments, quaternion


def _volume(model: Any, geom: int, *, exact: bool) -> float:
    import mujoco

    radius, half = model.geom_size[geom, :2]
    kind = model.geom_type[geom]
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return float(np.pi * radius**2 * (2 * half + (4 / 3 * radius if exact else radius)))
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return float(4 / 3 * np.pi * radius**3)
    raise ConfigError(f"the option {OPTION!r} is for bodies of capsules and spheres: this one has other shapes")


def _unit_inertia(model: Any, geom: int) -> np.ndarray[Any, Any]:
    """The old moments of inertia of a geom of mass 1 about its own axes. (3,)"""
    import mujoco

    radius, half = model.geom_size[geom, :2]
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.full(3, 0.4 * radius**2)
    height = 2 * half + radius
    across = (3 * radius**2 + height**2) / 12
    return np.array([across, across, radius**2 / 2])
