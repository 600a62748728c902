"""File formats of frames, with one module for each format. Sources are read in blocks.

A source knows the number and the size of its records before it reads them. So memory for all frames is allocated once,
and no frame is in memory twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError


class Block(NamedTuple):
    """Consecutive records of a source. The fields are those of `Frames`."""

    image: NDArray[np.uint8]
    action: NDArray[Any]
    reward: NDArray[Any]
    discount: NDArray[Any]
    first: NDArray[np.bool_]


class Source(Protocol):
    """A file or data set of frames that can be read."""

    name: str
    """Path or data set id, for error messages."""
    records: int
    """Number of records, including resets."""
    size: tuple[int, int, int]
    """Channels, height and width of a frame."""
    known: dict[str, Any]
    """Values of the fields `env_id`, `action_repeat`, `shadow_size`, `low` and `high`, if the source has them."""

    def blocks(self) -> Iterator[Block]:
        """Yield all records, block by block."""


def frame_size(shape: tuple[int, ...], dtype: Any, what: str) -> tuple[int, int, int]:
    """Return channels, height and width of images with `shape` (records, ...). Channels may come first or last.

    Raises an error if the shape or the dtype is not that of frames. `what` names the images in its message.
    """
    if np.dtype(dtype) != np.uint8:
        raise DataError(f"{what} has dtype {dtype}: expected frames of uint8, 0 to 255")
    if len(shape) == 4 and shape[1] in (1, 3):
        return shape[1], shape[2], shape[3]
    if len(shape) == 4 and shape[3] in (1, 3):
        return shape[3], shape[1], shape[2]
    stacked = " (are the frames already stacked?)" if len(shape) == 4 else ""
    raise DataError(
        f"{what} has shape {tuple(shape)}{stacked}: expected one frame per record, (records, 3, height, width) or "
        "(records, height, width, 3)"
    )


def channels_first(frames: NDArray[np.uint8], size: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Convert frames to (records, channels, height, width). They may have any shape that `frame_size` accepts."""
    return frames if frames.shape[1:] == size else frames.transpose(0, 3, 1, 2)


def column(name: str, values: Any, records: int) -> NDArray[Any]:
    """Return a column as (records,), from (records,) or (records, 1). Raises an error for other shapes."""
    array = np.asarray(values)
    if array.shape not in ((records,), (records, 1)):
        raise DataError(f"{name} has shape {array.shape}: expected ({records},), one number per frame")
    return array.reshape(records)
