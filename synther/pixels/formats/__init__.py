"""Where frames come from: one file a format, each of which finds sources and goes through them in blocks.

A source knows how many records it holds, and of what size, before any of them is read: so the memory for all of them is
taken once, and no frame is held twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError


class Block(NamedTuple):
    """Some records of a source, in order: see `Frames` for what they hold."""

    image: NDArray[np.uint8]
    action: NDArray[Any]
    reward: NDArray[Any]
    discount: NDArray[Any]
    first: NDArray[np.bool_]


class Source(Protocol):
    name: str
    """For errors: a path, or the id of a data set."""
    records: int
    size: tuple[int, int, int]
    """Channels, height and width of a frame."""
    known: dict[str, Any]
    """What it tells of `env_id`, `action_repeat`, `low` and `high`."""

    def blocks(self) -> Iterator[Block]:
        """All records; none of them is looked at before."""


def frame_size(shape: tuple[int, ...], dtype: Any, what: str) -> tuple[int, int, int]:
    """Channels, height and width of pictures of this `shape` (records, ...), whose channels may come first or last."""
    if np.dtype(dtype) != np.uint8:
        raise DataError(f"{what} has dtype {dtype}: expected frames of uint8, 0 to 255")
    if len(shape) == 4 and shape[1] in (1, 3):
        return shape[1], shape[2], shape[3]
    if len(shape) == 4 and shape[3] in (1, 3):
        return shape[3], shape[1], shape[2]
    stacked = " (frames that are stacked already?)" if len(shape) == 4 else ""
    raise DataError(
        f"{what} has shape {tuple(shape)}{stacked}: expected a single frame a record, (records, 3, height, width) or "
        "(records, height, width, 3)"
    )


def channels_first(frames: NDArray[np.uint8], size: tuple[int, int, int]) -> NDArray[np.uint8]:
    """`frames`, which have one of the two shapes of `frame_size`, as (records, channels, height, width)."""
    return frames if frames.shape[1:] == size else frames.transpose(0, 3, 1, 2)


def column(name: str, values: Any, records: int) -> NDArray[Any]:
    """One number a record, (records,) or (records, 1)."""
    array = np.asarray(values)
    if array.shape not in ((records,), (records, 1)):
        raise DataError(f"{name} has shape {array.shape}: expected ({records},), a number for each frame")
    return array.reshape(records)
