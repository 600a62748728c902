"""Record episodes of frames into a file. Finished episodes wait in a folder next to it, so that work can be resumed."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synther.collect.rows import target_of
from synther.durable import partial_folder
from synther.errors import ConfigError
from synther.folder import RunFolder
from synther.pixels.files import read, write
from synther.pixels.formats.hdf5 import SUFFIXES, Shard
from synther.pixels.frames import Frames
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FrameRecorder:
    """Episodes that are recorded while they are iterated over. Iterating again gives the same episodes."""

    identity: dict[str, Any]
    """All options that the episodes depend on, as JSON values."""
    after: Callable[[Sequence[int]], Iterator[Frames]]
    """after(lengths): the remaining episodes, given the number of decisions of each episode that exists already."""
    longest: int | None = None
    """Decisions of an episode that ends by its time limit. None: the length of the longest episode."""

    def __iter__(self) -> Iterator[Frames]:
        return self.after([])


@dataclass(frozen=True)
class FrameSummary:
    """Summary of a file of frames."""

    env_id: str | None
    frames: int
    decisions: int
    episodes: int
    whole: int
    """Episodes that terminated or reached the time limit."""
    mean_return: float | None
    std: float | None
    """Over whole episodes, if there are any."""


def save_frames(recorder: FrameRecorder, out: Path, *, progress: Progress | bool = False) -> FrameSummary:
    """Record all episodes and write them to the file `out`, which appears when it is complete.

    Until then, finished episodes are kept in the folder `OUT.partial`. An interrupted call continues from there. A
    folder with episodes of another recorder is refused.
    """
    folder = partial_folder(out)
    run = RunFolder(folder)
    with ExitStack() as held:
        if folder.exists():
            held.enter_context(run.work(recorder.identity, lambda: False))
        parts = list(itertools.takewhile(Path.exists, (_part(folder, number) for number in itertools.count())))
        done = [Shard(part).records - 1 for part in parts]
        if done:
            log.info("going on after %d decisions in %s", sum(done), folder)
        for episode in recorder.after(done):
            if not run.begun:  # not earlier: a call that fails before its first episode leaves nothing behind
                held.enter_context(run.work(recorder.identity, lambda: False))
            parts.append(_part(folder, len(parts)))
            write(episode, parts[-1])
        found = _joined(out, parts, recorder.longest, progress)
        for part in parts:  # before the description of the folder, so that a half-deleted folder is still recognised
            part.unlink()
        shutil.rmtree(folder)
    return found


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{SUFFIXES[0]}"


def _joined(out: Path, parts: Sequence[Path], longest: int | None, progress: Progress | bool) -> FrameSummary:
    """Join all parts into one file, with one part in memory at a time."""
    seen: list[tuple[int, float, bool]] = []
    env_id: str | None = None
    with resolve(progress).phase(f"write {out}", len(parts)) as phase:

        def watched() -> Iterator[Frames]:
            nonlocal env_id
            for part in parts:
                episode = read(part)
                seen.append((len(episode) - 1, float(episode.returns()[0]), bool(episode.discount[-1] == 0)))
                env_id = episode.env_id
                yield episode
                phase.advance(1)

        write(watched(), out)
    lengths, totals, terminals = (np.array(column) for column in zip(*seen, strict=True))
    whole = totals[terminals | (lengths >= (longest or lengths.max()))]
    spread = (float(whole.mean()), float(whole.std())) if len(whole) else (None, None)
    decisions, count = int(lengths.sum()), len(seen)
    return FrameSummary(env_id, decisions + count, decisions, count, len(whole), *spread)


def frames_target(out: str) -> Path:
    """Check that `out` is a new file that can be written, and return its path."""
    if Path(out).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"frames are written as {' or '.join(SUFFIXES)}, got {out}: choose another --out")
    return Path(target_of(out))
