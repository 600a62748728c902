"""Read Minari data sets of images, by folder or by the id of an installed data set.

Observations are images: a `Box` of uint8, or a `Dict` that contains one. Actions must be a `Box` with one axis. Frames
must not be stacked, because pixel agents stack them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError, FormatError
from synther.formats.minari import Stored, data_folder, quietly
from synther.formats.reading import reading
from synther.pixels.formats import Block, channels_first, frame_size
from synther.schema import check_size


class Dataset:
    """All episodes of one Minari data set."""

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.name = str(source)
        folder = data_folder(source)
        if folder is None:
            raise FormatError(f"{source}: not a folder, and no Minari data set of this id is installed")
        with reading(source, "a Minari data set"), quietly():
            self._dataset = Stored(folder)
            self._entry, space = _picture(self._dataset.observation_space)
            self.size = frame_size((1, *space.shape), space.dtype, "an observation")
            self.records = self._dataset.steps + self._dataset.episodes
            check_size(self.records * math.prod(self.size), self._dataset.size)
            self.known = _known(self._dataset)

    def blocks(self) -> Iterator[Block]:
        """Yield all records, one episode per block."""
        with quietly():
            for episode in self._dataset.recorded():
                images = episode.observations if self._entry is None else episode.observations[self._entry]
                steps = len(episode.rewards)
                if len(images) != steps + 1:
                    raise DataError(
                        f"episode {episode.number} has {len(images)} frames, expected {steps + 1}: one more than steps"
                    )
                yield Block(
                    channels_first(np.asarray(images), self.size),
                    _after_reset(np.asarray(episode.actions, np.float32), 0.0),
                    _after_reset(np.asarray(episode.rewards, np.float32), 0.0),
                    _after_reset(1.0 - np.asarray(episode.terminations, np.float32), 1.0),
                    np.arange(steps + 1) == 0,
                )


def _picture(space: Any) -> tuple[str | None, Any]:
    """Return the key of the images in an observation, and their space. The key is None if observations are images."""
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(space, gymnasium.spaces.Box):
            raise DataError(f"observations are of {space}: expected a Box of images, or a Dict with one")
        return None, space
    images = [name for name, one in space.items() if one.dtype == np.uint8 and len(one.shape or ()) == 3]
    if len(images) != 1:
        raise DataError(f"{len(images)} of the observations {', '.join(space)} are images of uint8: expected one")
    return images[0], space[images[0]]


def _known(dataset: Stored) -> dict[str, Any]:
    """Return the task and the action bounds of a data set. Raises an error for other action spaces than a Box."""
    import gymnasium

    space = dataset.action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise DataError(f"actions are of {space}: expected a Box with one axis")
    return {"env_id": dataset.env_id, "low": space.low, "high": space.high}


def _after_reset(values: NDArray[Any], at_reset: float) -> NDArray[Any]:
    """Return the values of an episode's steps with a value for its reset in front."""
    return np.concatenate([np.full_like(values[:1], at_reset), values])
