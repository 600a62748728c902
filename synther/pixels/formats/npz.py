"""Episodes as npz files: `image` (T, H, W, 3) of uint8, `action`, `reward`, and `discount` or `is_terminal`.

V-D4RL's frames are available in this form, too. A file is one episode, or several if it has `is_first`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.formats.reading import reading
from synther.errors import DataError, FormatError
from synther.pixels.formats import Block, channels_first, column, frame_size

SUFFIXES = (".npz",)

_IMAGES = ("image", "observation")


class Episode:
    """One npz file, with one or more episodes."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.known: dict[str, Any] = {}
        self._path = path
        with reading(path, "an npz file of frames"), zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
            self._image = next((key for key in _IMAGES if key in held), "")
            missing = [key for key in (self._image or "image", "action", "reward") if key not in held]
            if not {"discount", "is_terminal"} & set(held):
                missing.append("discount or is_terminal")
            if missing:
                raise FormatError(f"no episode of frames: missing {', '.join(missing)}; got {', '.join(held)}")
            shape, dtype = _header(archive, self._image)
            self.size = frame_size(shape, dtype, self._image)
            self.records = shape[0]

    def blocks(self) -> Iterator[Block]:
        with np.load(self._path, allow_pickle=False) as file:
            image = channels_first(file[self._image], self.size)
            reward = column("reward", file["reward"], self.records)
            discount = self._discount(file)
            first = np.arange(self.records) == 0
            if "is_first" in file:
                first = column("is_first", file["is_first"], self.records) != 0
            if len(file["action"]) != self.records:
                raise DataError(f"action has {len(file['action']):,} records, {self._image} has {self.records:,}")
            yield Block(image, file["action"], reward, discount, first)

    def _discount(self, file: Any) -> NDArray[Any]:
        if "is_terminal" in file:
            return np.where(column("is_terminal", file["is_terminal"], self.records) != 0, 0.0, 1.0)
        return column("discount", file["discount"], self.records)


def _header(archive: zipfile.ZipFile, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, without reading it."""
    with archive.open(f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype
