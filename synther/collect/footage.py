"""Episodes of frames on their way to a file: whole ones in a folder beside it, so that work can stop at any moment."""

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
class Footage:
    """Episodes that are made while somebody goes through them, and are the same every time."""

    identity: dict[str, Any]
    """What they depend on, for JSON."""
    after: Callable[[Sequence[int]], Iterator[Frames]]
    """The rest of them, where the first ones are there already: how many decisions each of those has, in order."""
    longest: int | None = None
    """Decisions of an episode that is cut by nothing but its time limit; None is the longest that there is."""

    def __iter__(self) -> Iterator[Frames]:
        return self.after([])


@dataclass(frozen=True)
class Filmed:
    """What somebody wants to know of frames that were kept."""

    env_id: str | None
    frames: int
    decisions: int
    episodes: int
    whole: int
    """Episodes but for those that are shorter than the longest, and not over."""
    mean_return: float | None
    std: float | None
    """Of the whole ones, if there are any."""


def keep(out: Path, footage: Footage, *, progress: Progress | bool = False) -> Filmed:
    """Write episodes to a file, which appears when they are all there.

    Until then they gather in a folder `OUT.partial`; an interrupted call goes on from what is there. A folder of other
    footage is refused.
    """
    folder = partial_folder(out)
    run = RunFolder(folder)
    with ExitStack() as held:
        if folder.exists():
            held.enter_context(run.work(footage.identity, lambda: False))
        parts = list(itertools.takewhile(Path.exists, (_part(folder, number) for number in itertools.count())))
        done = [Shard(part).records - 1 for part in parts]
        if done:
            log.info("going on after %d decisions in %s", sum(done), folder)
        for episode in footage.after(done):
            if not run.begun:  # not before: nothing is left of what failed before its first episode
                held.enter_context(run.work(footage.identity, lambda: False))
            parts.append(_part(folder, len(parts)))
            write(episode, parts[-1])
        found = _joined(out, parts, footage.longest, progress)
        for part in parts:  # before what says whose they are, so that half a folder is known again
            part.unlink()
        shutil.rmtree(folder)
    return found


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{SUFFIXES[0]}"


def _joined(out: Path, parts: Sequence[Path], longest: int | None, progress: Progress | bool) -> Filmed:
    """One file of all the parts, of which one at a time is in memory."""
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
    return Filmed(env_id, decisions + count, decisions, count, len(whole), *spread)


def frames_target(out: str) -> Path:
    """Where frames shall go: a file that is new and can be written."""
    if Path(out).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"frames are kept as {' or '.join(SUFFIXES)}, got {out}: choose another --out")
    return Path(target_of(out))
