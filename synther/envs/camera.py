"""Render the camera of a MuJoCo model without a display, as uint8.

MuJoCo and dm_control choose a graphics library by `MUJOCO_GL` once, at import, and without a display they choose one
that cannot render. A `Camera` uses its own context, no matter what was imported before. The picture is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.rendering import BACKENDS, START_SECONDS
from synther.errors import ConfigError

Image = NDArray[np.uint8]
"""(3, height, width)"""

_GEOMS = 1_000
"""Largest number of shapes in a scene, the same as in dm_control. No model here has more."""

_SHADOWS = 16_384
"""Largest shadow map, as OpenGL limits the size of textures on common machines."""

_PROBE = """
import importlib, sys
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(8, 8)
context.make_current()
context.free()
"""


def graphics() -> str:
    """The backend that MuJoCo can render with: `MUJOCO_GL` if set, otherwise the first of EGL and OSMesa that works.

    A broken library can crash a process, so each one is tried once, in a process of its own.
    """
    told = os.environ.get("MUJOCO_GL", "").lower()
    if told and told not in ("egl", "osmesa", "glfw", "cgl"):
        raise ConfigError(f"MUJOCO_GL={told} cannot render: set it to egl or osmesa, or unset it")
    failures = []
    for backend in (told,) if told else BACKENDS:
        failure = failure_of(backend)
        if not failure:
            return backend
        failures.append(f"{backend}: {failure}")
    raise ConfigError(
        "cannot render frames: without a display this needs EGL or OSMesa, and none works (Debian: apt-get install "
        f"libegl1 libgl1-mesa-dri, or libosmesa6). {'; '.join(failures)}"
    )


@cache
def failure_of(backend: str) -> str:
    """The reason why `backend` does not work, or an empty string if it does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, backend],
            env=kept | {"MUJOCO_GL": backend},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it did not finish within {START_SECONDS:.0f} s"
    said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
    return said[-1] if done.returncode else ""


def check_shadow_size(size: int) -> int:
    if not 1 <= size <= _SHADOWS:
        raise ConfigError(f"the shadow size must lie between 1 and {_SHADOWS:,} (dm_control: 4,096), got {size}")
    return size


class Camera:
    """The camera `number` of `model` (a `mujoco.MjModel`), with pictures of `size` x `size` pixels.

    `backend` is the graphics library (None: `graphics()`). `shadow_size` is the width of the shadow map in texels
    (None: that of the model). `close` frees the camera; so does deleting the object.
    """

    def __init__(
        self, model: Any, number: int, size: int, backend: str | None = None, shadow_size: int | None = None
    ) -> None:
        import mujoco

        if not 0 <= number < model.ncam:
            raise ConfigError(f"there is no camera {number}: the model has {model.ncam}, counted from 0")
        # A buffer as small as the picture: clearing the default one takes 5 % of the time of a frame.
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        if shadow_size is not None:
            model.vis.quality.shadowsize = check_shadow_size(shadow_size)
        try:
            self._window = import_module(f"mujoco.{backend or graphics()}").GLContext(size, size)
            self._window.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        except (ImportError, RuntimeError, AttributeError, mujoco.FatalError) as error:
            raise ConfigError(f"cannot render frames with {backend or graphics()}: {error}") from error
        self.close = weakref.finalize(self, _free, self._window, self._context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._model = model
        self._scene = mujoco.MjvScene(model, _GEOMS)
        self._option = mujoco.MjvOption()
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._view.fixedcamid = number
        self._rectangle = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), np.uint8)

    def frame(self, data: Any) -> Image:
        """A picture (3, size, size) of the state in `data` (a `mujoco.MjData`)."""
        import mujoco

        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._view, everything, self._scene)
        self._window.make_current()  # there may be other cameras
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._context)
        return np.ascontiguousarray(self._pixels[::-1].transpose(2, 0, 1))  # rows come bottom up


def _free(window: Any, context: Any) -> None:
    window.make_current()
    context.free()
    window.free()
