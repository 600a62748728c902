"""What pixel agents meet while they act, on disk: a file of frames for each seed and segment."""

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
    """Frames of the `seeds` in `folder`; those of the current segment are in memory."""

    def __init__(self, folder: Path, seeds: Sequence[int], envs: PixelVectorEnv, **drawn: Any) -> None:
        """`drawn` are fields of `Frames`: how they were drawn."""
        self.folder, self.seeds = folder, seeds
        self._known = {**drawn, "low": envs.low, "high": envs.high}
        self._segment: list[list[Records]] = [[] for _ in seeds]

    def append(self, records: Records, who: Numbers) -> None:
        for place, member in enumerate(who):
            self._segment[member].append(records.some(slice(place, place + 1)))

    def save(self, end: int) -> None:
        """Write the segment that ends after `end` steps."""
        for seed, segment in zip(self.seeds, self._segment, strict=True):
            frames = Frames(*Records.joined(segment), **self._known)
            write(frames, self._file(seed, end))
            segment.clear()

    def segments(self, ends: Sequence[int]) -> Iterator[list[Frames]]:
        """The frames of every seed, for each segment with these `ends`."""
        for end in ends:
            try:
                yield [read(self._file(seed, end)) for seed in self.seeds]
            except SyntherError as error:
                raise ConfigError(f"{self.folder} has lost frames ({error}): {ANOTHER}") from None

    def _file(self, seed: int, end: int) -> Path:
        return self.folder / f"seed-{seed}" / f"{end:010}.hdf5"


def replayed(segment: Sequence[Frames]) -> Iterator[tuple[Records, Numbers]]:
    """The records of a segment, one of each member at a time, with the members that have one more."""
    every = [Records(f.image, f.action, f.reward, f.discount, f.first) for f in segment]
    for number in range(max(map(len, segment))):
        who = np.flatnonzero([number < len(frames) for frames in segment])
        yield Records.joined([every[int(member)].some(slice(number, number + 1)) for member in who]), who
