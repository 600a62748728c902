"""Read episodes from npz files with `image` (T, H, W, 3) of uint8, `action`, `reward`, and `discount` or `is_terminal`.

V-D4RL's frames are also available in this format. A file contains one episode, or several if it has `is_first`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError, FormatError
from synther.formats.npz import Archive
from synther.formats.reading import reading
from synther.pixels.formats import Block, channels_first, column, frame_size

SUFFIXES = (".npz",)

_IMAGES = ("image", "observation")
_COLUMNS = ("action", "reward", "discount", "is_terminal", "is_first")


class Episode:
    """One npz file, with one or more episodes."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.known: dict[str, Any] = {}
        self._path = path
        with reading(path, "an npz file of frames"), Archive.opened(path) as archive:
            keys = archive.names
            self._image = next((key for key in _IMAGES if key in keys), "")
            missing = [key for key in (self._image or "image", "action", "reward") if key not in keys]
            if not {"discount", "is_terminal"} & set(keys):
                missing.append("discount or is_terminal")
            if missing:
                raise FormatError(f"no episode of frames: missing {', '.join(missing)}; got {', '.join(keys)}")
            shape, dtype = archive.header(self._image)
            self.size = frame_size(shape, dtype, self._image)
            self.records = shape[0]
            self._keys = [self._image, *(key for key in _COLUMNS if key in keys)]

    def blocks(self) -> Iterator[Block]:
        """Yield all records as one block."""
        with Archive.opened(self._path) as archive:
            arrays = archive.arrays(self._keys)
        image, action = channels_first(arrays[self._image], self.size), arrays["action"]
        reward = column("reward", arrays["reward"], self.records)
        first = np.arange(self.records) == 0
        if "is_first" in arrays:
            first = column("is_first", arrays["is_first"], self.records) != 0
        if action.shape[:1] != (self.records,):
            raise DataError(f"action has shape {action.shape}, {self._image} has {self.records:,} records")
        yield Block(image, action, reward, self._discount(arrays), first)

    def _discount(self, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the discount of each record, from `is_terminal` if the file has it."""
        if "is_terminal" in arrays:
            return np.where(column("is_terminal", arrays["is_terminal"], self.records) != 0, 0.0, 1.0)
        return column("discount", arrays["discount"], self.records)
