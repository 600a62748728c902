"""Render images of recorded states: the simulator is set to each state and rendered, without a display.

MuJoCo chooses its graphics library when it is imported, and a broken library can crash the process. So rendering runs
in a separate process. It is tried with EGL first, then with OSMesa.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.envs.gymnasium_tasks import CLASSIC
from synther.envs.tasks import Task, opened_task, require
from synther.errors import ConfigError, DataError

Frame = NDArray[np.uint8]
"""(height, width, 3)"""

BACKENDS = ("egl", "osmesa") if sys.platform == "linux" else ("glfw",)
"""Graphics libraries of MuJoCo, in the order in which they are tried."""

GREY = 128
"""Value of all pixels of a frame if its state cannot be rendered."""

START_SECONDS = 60.0
FRAME_SECONDS = 2.0
"""Time limit of the rendering process, and the addition to it for each frame.

Software rendering takes 0.1 to 0.5 s per frame. If it takes longer than the limit, the graphics library hangs.
"""

ROWS, FRAMES = "rows.npy", "frames.npy"
"""Files in the folder through which the two processes exchange data."""

LARGEST = 1e10
"""Largest absolute value of an observation that is rendered. MuJoCo has the same limit for positions and velocities."""


def render_states(env_id: str, observations: ArrayLike, *, width: int = 160, height: int = 160) -> list[Frame]:
    """Render the state of each row of `observations` (N, O) as a frame (height, width, 3) of uint8.

    `env_id` is one of `simulator.SUPPORTED`. A row that is not a valid state, for example noise, gives a grey frame.
    Rendering needs EGL or OSMesa, or pygame for Gymnasium's classic control.
    """
    require(env_id)
    rows = np.asarray(observations, np.float64)
    if rows.ndim != 2:
        raise DataError(f"{env_id}: expected observations of shape (rows, columns), got {rows.shape}")
    if width < 1 or height < 1:
        raise DataError(f"expected a width and height of at least 1, got {width} x {height}")
    if env_id in CLASSIC and find_spec("pygame") is None:
        raise ConfigError(f"drawing {env_id} needs pygame, which is not installed: pip install 'synther[gym]'")
    if not len(rows):
        return []
    with opened_task(env_id) as task:  # a missing library or a wrong width raises its error in this process
        if rows.shape[1] != task.columns:
            raise DataError(f"{env_id}: expected observations of shape (rows, {task.columns}), got {rows.shape}")
    return list(_rendered_in_process(env_id, rows, width, height))


def png(frame: ArrayLike) -> bytes:
    """Return a frame (H, W, 3) of uint8 as the content of a PNG file."""
    pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise DataError(f"expected a frame (height, width, 3) of uint8, got {pixels.shape} of {pixels.dtype}")
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB
    # Each line is stored as its difference from the line above (PNG filter 2). This makes files of smooth images small.
    above = np.concatenate([np.zeros_like(pixels[:1]), pixels[:-1]])
    lines = np.empty((height, 1 + 3 * width), np.uint8)
    lines[:, 0] = 2
    lines[:, 1:] = (pixels - above).reshape(height, -1)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _piece(b"IHDR", header) + _piece(b"IDAT", body) + _piece(b"IEND", b"")


def _piece(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file: length, type, content and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _rendered_in_process(env_id: str, rows: NDArray[Any], width: int, height: int) -> Frame:
    """Render frames (N, height, width, 3) in a separate process, with the first graphics library that works."""
    limit = START_SECONDS + FRAME_SECONDS * len(rows)
    failures = []
    with tempfile.TemporaryDirectory(prefix="synther-frames-") as folder:
        np.save(Path(folder, ROWS), rows)
        frames = Path(folder, FRAMES)
        command = [sys.executable, "-m", __name__, env_id, folder, str(width), str(height)]
        for backend in BACKENDS:
            failure = attempted(command, _environment(backend), limit)
            if frames.exists():  # some graphics libraries crash when the process ends
                rendered: Frame = np.load(frames)
                return rendered
            failures.append(f"{backend}: {failure}")
    raise ConfigError(
        f"cannot render {env_id} here: rendering without a display needs EGL or OSMesa, and neither works (Debian: "
        f"apt-get install libegl1 libgl1-mesa-dri, or libosmesa6). {'; '.join(failures)}"
    )


def attempted(command: list[str], environment: dict[str, str], limit: float) -> str:
    """Run a command for at most `limit` seconds. Return why it failed, or an empty string if it did not."""
    how: Any = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=limit, **how)
    except subprocess.TimeoutExpired:
        return f"it was not done after {limit:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _environment(backend: str) -> dict[str, str]:
    """Return the environment variables of the rendering process: no display, and the same import path as here."""
    dropped = ("PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return kept | {"MUJOCO_GL": backend, "SDL_VIDEODRIVER": "dummy", "PYTHONPATH": path}


def _draw(task: Task, rows: NDArray[Any], width: int, height: int) -> Frame:
    """Render the state of each row. Rows without a valid state give grey frames."""
    frames = np.full((len(rows), height, width, 3), GREY, np.uint8)
    still = np.zeros(task.action_shape)
    for row, observation in enumerate(rows):
        drawable = bool((np.abs(observation) < LARGEST).all())  # False for NaN too
        if drawable and task.place(observation, still):
            frames[row] = _fitted(task.frame(width, height), width, height)
    return frames


def _fitted(frame: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Resize a frame with nearest-neighbour interpolation, because classic control renders at one fixed size."""
    lines = (np.arange(height) + 0.5) * frame.shape[0] / height
    columns = (np.arange(width) + 0.5) * frame.shape[1] / width
    nearest: NDArray[Any] = frame[lines.astype(int)[:, None], columns.astype(int)]
    return nearest


def _main(env_id: str, folder: str, width: str, height: str) -> None:
    """Render the rows in `folder`. This is the main function of the rendering process."""
    size = int(width), int(height)
    unfinished = Path(folder, "unfinished.npy")
    with opened_task(env_id, drawn=size) as task:
        np.save(unfinished, _draw(task, np.load(Path(folder, ROWS)), *size))
        unfinished.rename(Path(folder, FRAMES))


if __name__ == "__main__":
    _main(*sys.argv[1:])
