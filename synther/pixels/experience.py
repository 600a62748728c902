"""Store the frames that pixel agents collect in an online run, in one file for each seed and segment of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synther.errors import ConfigError, SyntherError
from synther.folder import ANOTHER
from synther.pixels.files import read, write
from synther.pixels.frames import Frames
from synther.pixels.ring import Numbers
from synther.pixels.vector_env import PixelVectorEnv, Records


class FrameExperience:
    """The frames of all `seeds`. The current segment is in memory, and earlier segments are in files in `folder`."""

    def __init__(self, folder: Path, seeds: Sequence[int], envs: PixelVectorEnv, **rendering: Any) -> None:
        """`rendering` has further fields of `Frames`, which describe how frames were rendered, such as `env_id`."""
        self.folder, self.seeds = folder, seeds
        self._fields = {**rendering, "low": envs.low, "high": envs.high}
        self._segment: list[list[Records]] = [[] for _ in seeds]

    def append(self, records: Records, who: Numbers) -> None:
        """Add one record for each of the members `who`."""
        for place, member in enumerate(who):
            self._segment[member].append(records.some(slice(place, place + 1)))

    def save(self, end: int) -> None:
        """Write the current segment, which ends after `end` steps, and start a new one."""
        for seed, segment in zip(self.seeds, self._segment, strict=True):
            frames = Frames(*Records.joined(segment), **self._fields)
            write(frames, self._file(seed, end))
            segment.clear()

    def segments(self, ends: Sequence[int]) -> Iterator[list[Frames]]:
        """Yield the frames of all seeds, segment by segment. `ends` are the steps after which the segments end."""
        for end in ends:
            try:
                yield [read(self._file(seed, end)) for seed in self.seeds]
            except SyntherError as error:
                raise ConfigError(f"{self.folder} has lost frames ({error}): {ANOTHER}") from None

    def _file(self, seed: int, end: int) -> Path:
        return self.folder / f"seed-{seed}" / f"{end:010}.hdf5"


def replayed(segment: Sequence[Frames]) -> Iterator[tuple[Records, Numbers]]:
    """Yield the records of a segment in order: record `number` of each member, and the members that have it.

    Members can have different numbers of records.
    """
    members = [Records(f.image, f.action, f.reward, f.discount, f.first) for f in segment]
    for number in range(max(map(len, segment))):
        who = np.flatnonzero([number < len(frames) for frames in segment])
        yield Records.joined([members[int(member)].some(slice(number, number + 1)) for member in who]), who
