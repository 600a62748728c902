"""All frames of a run on disk: of every seed a folder of files that each hold the episodes of one leg.

They are files of frames as others (`pixels/files.py`), so that what a seed has seen is a data set too. A file is
written once and never again: a checkpoint costs what came since the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from synther.errors import ConfigError, SyntherError
from synther.pixels.files import read, write
from synther.pixels.frames import Frames
from synther.pixels.ring import Numbers
from synther.pixels.worlds import PixelWorlds, Records


class Film:
    """Frames of the `seeds` in `folder`, and in memory those of the leg that has not been written yet."""

    def __init__(self, folder: Path, seeds: Sequence[int], worlds: PixelWorlds, env_id: str, repeat: int) -> None:
        self.folder, self.seeds = folder, seeds
        self._known = {"env_id": env_id, "action_repeat": repeat, "low": worlds.low, "high": worlds.high}
        self._leg: list[list[Records]] = [[] for _ in seeds]

    def append(self, records: Records, who: Numbers) -> None:
        for place, member in enumerate(who):
            self._leg[member].append(records.some(slice(place, place + 1)))

    def save(self, end: int) -> None:
        """Write the leg that ends after so many steps."""
        for seed, leg in zip(self.seeds, self._leg, strict=True):
            frames = Frames(*Records.joined(leg), **self._known)
            write(self._file(seed, end), frames)
            leg.clear()

    def legs(self, ends: Sequence[int]) -> Iterator[list[Frames]]:
        """The frames of every seed in legs that ended after so many steps each, leg by leg."""
        for end in ends:
            try:
                yield [read(self._file(seed, end)) for seed in self.seeds]
            except SyntherError as error:
                raise ConfigError(
                    f"{self.folder} has lost frames ({error}): choose another --out, or remove the run's folder"
                ) from None

    def _file(self, seed: int, end: int) -> Path:
        return self.folder / f"seed-{seed}" / f"{end:010}.hdf5"


def replayed(leg: Sequence[Frames]) -> Iterator[tuple[Records, Numbers]]:
    """The records of all seeds as they came, each time with the members that have one more."""
    every = [Records(f.image, f.action, f.reward, f.discount, f.first) for f in leg]
    for number in range(max(map(len, leg))):
        who = np.flatnonzero([number < len(frames) for frames in leg])
        yield Records.joined([every[int(member)].some(slice(number, number + 1)) for member in who]), who
