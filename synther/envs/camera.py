"""Render images of a camera of a MuJoCo model as uint8, without a display.

MuJoCo and dm_control choose their graphics library once, when they are imported, by `MUJOCO_GL`. Without a display and
without `MUJOCO_GL`, they choose one that cannot render. A `Camera` creates its own graphics context, so it does not
depend on this choice. The images are the same.
"""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.rendering import BACKENDS, START_SECONDS, attempted
from synther.errors import ConfigError

Image = NDArray[np.uint8]
"""(3, height, width)"""

_GEOMS = 1_000
"""Largest number of shapes in a scene, the same as in dm_control. No model of the suite has more."""

_SHADOWS = 16_384
"""Largest width of a shadow map in texels, because OpenGL limits the size of textures on common machines."""

_PROBE = """
import importlib, sys
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(8, 8)
context.make_current()
context.free()
"""


def graphics() -> str:
    """Return a graphics library that MuJoCo can render with.

    This is `MUJOCO_GL` if it is set, otherwise the first of EGL and OSMesa that works. Each library is tried once, in a
    separate process, because a broken library can crash its process.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen and chosen not in ("egl", "osmesa", "glfw", "cgl"):
        raise ConfigError(f"MUJOCO_GL={chosen} cannot render: set it to egl or osmesa, or unset it")
    failures = []
    for backend in (chosen,) if chosen else BACKENDS:
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
    """Return the reason why the graphics library `backend` does not work, or an empty string if it works."""
    kept = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    return attempted([sys.executable, "-c", _PROBE, backend], kept | {"MUJOCO_GL": backend}, START_SECONDS)


def check_shadow_size(size: int) -> int:
    """Return `size`, the width of a shadow map in texels, or raise an error if it is out of range."""
    if not 1 <= size <= _SHADOWS:
        raise ConfigError(f"the shadow size must lie between 1 and {_SHADOWS:,} (dm_control: 4,096), got {size}")
    return size


class Camera:
    """Renders images of `size` x `size` pixels with the camera `number` of `model` (a `mujoco.MjModel`).

    `backend` is the graphics library (None: `graphics()`). `shadow_size` is the width of the shadow map in texels
    (None: that of the model). `close` frees the camera. It is also freed when the object is deleted.
    """

    def __init__(
        self, model: Any, number: int, size: int, backend: str | None = None, shadow_size: int | None = None
    ) -> None:
        import mujoco

        if not 0 <= number < model.ncam:
            raise ConfigError(f"there is no camera {number}: the model has {model.ncam}, counted from 0")
        # The buffer is as small as the image, because clearing the default one takes 5 % of the time of a frame.
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
        """Render the state in `data` (a `mujoco.MjData`) as an image (3, size, size)."""
        import mujoco

        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._view, everything, self._scene)
        self._window.make_current()  # another camera may have changed the current context
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._context)
        return np.ascontiguousarray(self._pixels[::-1].transpose(2, 0, 1))  # OpenGL's first row is the bottom


def _free(window: Any, context: Any) -> None:
    window.make_current()
    context.free()
    window.free()
