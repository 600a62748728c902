"""Give capsules the mass and inertia that they had in MuJoCo before version 2.1, as in D4RL's data.

Since MuJoCo 2.1, mass and inertia of capsules are exact. Before, a capsule of radius r and half length h had the mass
of a cylinder of height 2h + r. D4RL's data were recorded with these bodies. A newer MuJoCo computes other next states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synther.errors import ConfigError

OPTION = "capsules"
"""Name of an environment option that is not passed to `gymnasium.make`: `{"capsules": "old"}`."""
_OLD = "old"
_FIXED_TOTAL = "HalfCheetah"
"""The XML file of this body sets the total mass, so its masses are scaled to keep their sum."""


def split(options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the options of `gymnasium.make`, and whether capsules get their old masses."""
    rest = dict(options)
    chosen = rest.pop(OPTION, None)
    if chosen not in (None, _OLD):
        raise ConfigError(f'the option {OPTION!r} of an environment must be "{_OLD}", got {chosen!r}')
    return rest, chosen == _OLD


def reweigh(env: Any, env_id: str) -> None:
    """Give the capsules of a MuJoCo environment their old masses and inertias."""
    model: Any = getattr(env.unwrapped, "model", None)
    if not hasattr(model, "geom_type"):
        raise ConfigError(f"the option {OPTION!r} is for MuJoCo environments of Gymnasium, and {env_id} is none")
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
    """Set mass, centre of mass and inertia of a body. All its geoms must have the same density."""
    import mujoco

    exact = np.array([_volume(model, geom, exact=True) for geom in geoms])
    density = float(model.body_mass[body]) / exact.sum()
    mass = density * np.array([_volume(model, geom, exact=False) for geom in geoms])
    places = model.geom_pos[geoms]
    centre = mass @ places / mass.sum()
    inertia = np.zeros((3, 3))
    for geom, geom_mass, place in zip(geoms, mass, places, strict=True):
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, model.geom_quat[geom])
        matrix = rotation.reshape(3, 3)
        offset = place - centre
        inertia += matrix @ np.diag(geom_mass * _unit_inertia(model, geom)) @ matrix.T
        inertia += geom_mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    moments, axes = np.linalg.eigh(inertia)
    axes[:, 2] *= np.sign(np.linalg.det(axes))  # make it a rotation if it is a reflection
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, axes.flatten())
    model.body_mass[body], model.body_ipos[body] = mass.sum(), centre
    model.body_inertia[body], model.body_iquat[body] = moments, quaternion


def _volume(model: Any, geom: int, *, exact: bool) -> float:
    """Return the volume of a capsule or sphere. For a capsule: exact, or as MuJoCo before 2.1 computed it."""
    import mujoco

    radius, half = model.geom_size[geom, :2]
    kind = model.geom_type[geom]
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return float(np.pi * radius**2 * (2 * half + (4 / 3 * radius if exact else radius)))
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return float(4 / 3 * np.pi * radius**3)
    raise ConfigError(f"the option {OPTION!r} is for bodies of capsules and spheres, but this body has other shapes")


def _unit_inertia(model: Any, geom: int) -> np.ndarray[Any, Any]:
    """Return the old moments of inertia (3,) of a geom of mass 1 about its own axes."""
    import mujoco

    radius, half = model.geom_size[geom, :2]
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.full(3, 0.4 * radius**2)
    height = 2 * half + radius
    across = (3 * radius**2 + height**2) / 12
    return np.array([across, across, radius**2 / 2])
