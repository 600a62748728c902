"""Minari data sets of images, by folder or by installed id: observations are a `Box` of uint8, or a `Dict` with one.

Actions must be a `Box` with one axis. Frames must not be stacked: stacking is done here.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError, FormatError, MissingExtra
from synther.formats.minari import Stored, folder_in
from synther.formats.reading import reading
from synther.pixels.formats import Block, channels_first, frame_size
from synther.schema import check_size


class Dataset:
    """All episodes of one data set."""

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.name = str(source)
        folder = data_folder(source)
        if folder is None:
            raise FormatError(f"{source}: not a folder, and no Minari data set of this id is installed")
        with reading(source, "a Minari data set"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old versions and missing authors
            self._dataset = Stored(folder)
            self._entry, space = _picture(self._dataset.observation_space)
            self.size = frame_size((1, *space.shape), space.dtype, "an observation")
            self.records = self._dataset.steps + self._dataset.episodes
            check_size(self.records * math.prod(self.size), self._dataset.size)
            self.known = _known(self._dataset)

    def blocks(self) -> Iterator[Block]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for episode in self._dataset.recorded():
                seen = episode.observations if self._entry is None else episode.observations[self._entry]
                steps = len(episode.rewards)
                if len(seen) != steps + 1:
                    raise DataError(
                        f"episode {episode.number} has {len(seen)} frames, expected {steps + 1}: one more than steps"
                    )
                yield Block(
                    channels_first(np.asarray(seen), self.size),
                    _after_reset(np.asarray(episode.actions, np.float32), 0.0),
                    _after_reset(np.asarray(episode.rewards, np.float32), 0.0),
                    _after_reset(1.0 - np.asarray(episode.terminations, np.float32), 1.0),
                    np.arange(steps + 1) == 0,
                )


def data_folder(source: str | os.PathLike[str]) -> Path | None:
    """The folder with `metadata.json`, from a folder or an installed id; None if there is none."""
    path = Path(source).expanduser()
    if not path.exists():
        try:
            from minari.storage import get_dataset_path
        except ImportError:
            raise MissingExtra("minari", "minari", "reading a Minari data set") from None
        path = Path(get_dataset_path(os.fspath(source)))
    return folder_in(path)


def _picture(space: Any) -> tuple[str | None, Any]:
    """The key of the images in the observation (None: the observation is the image), and their space."""
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(space, gymnasium.spaces.Box):
            raise DataError(f"observations are of {space}: expected a Box of images, or a Dict with one")
        return None, space
    found = [name for name, one in space.items() if one.dtype == np.uint8 and len(one.shape or ()) == 3]
    if len(found) != 1:
        raise DataError(f"{len(found)} of the observations {', '.join(space)} are images of uint8: expected one")
    return found[0], space[found[0]]


def _known(dataset: Stored) -> dict[str, Any]:
    import gymnasium

    space = dataset.action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise DataError(f"actions are of {space}: expected a Box with one axis")
    return {"env_id": dataset.env_id, "low": space.low, "high": space.high}


def _after_reset(values: NDArray[Any], at_reset: float) -> NDArray[Any]:
    return np.concatenate([np.full_like(values[:1], at_reset), values])
