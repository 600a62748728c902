"""Frames as a data set: recorded while a state-based agent acts, or drawn again from an online run.

The policy sees the state and not the frames, so agents that were trained in minutes can make data for pixel agents.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synther.collect.rows import AGENT, Summary, buffer_of, players
from synther.cores import cores
from synther.data.episodes import episode_spans
from synther.data.fingerprint import fingerprint
from synther.durable import partial_folder
from synther.envs.pixels import REPEAT, SIZE, check_drawable
from synther.envs.redrawing import check_redrawable
from synther.errors import ConfigError
from synther.folder import RunFolder, digest_of
from synther.formats.targets import target_of
from synther.pixels.files import read, write
from synther.pixels.formats.hdf5 import SUFFIXES, About, Shard
from synther.pixels.frames import Frames
from synther.pixels.recording import Look, draw, play
from synther.plain import whole_seed
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FrameRecorder:
    """Episodes that are recorded while they are iterated over, the same each time."""

    identity: dict[str, Any]
    """All options that the episodes depend on, as JSON values."""
    after: Callable[[Sequence[int]], Iterator[Frames]]
    """after(lengths): the remaining episodes, given the number of decisions of each episode that exists already."""
    longest: int | None = None
    """Decisions of an episode that ends by its time limit. None: the length of the longest episode."""
    what: str = "frames"
    """What is recorded, how much and how, for people."""


def record_frames(
    env_id: str,
    policy: str | Sequence[str],
    decisions: int,
    *,
    member: int | None = None,
    noise: float | None = None,
    stochastic: bool = False,
    seed: int = 0,
    repeat: int = REPEAT,
    size: int = SIZE,
    shadow_size: int | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> FrameRecorder:
    """Episodes of a task of the dm_control suite, with `decisions` in all; the last one may be cut.

    `policy` is "random" for uniform actions or an agent's file (.safetensors), whose `member` (None: the first) acts as
    `players` says. Of several, each has an equal share of the decisions, whose last episode may be cut. Frames
    depend on the seed, but not on the number of `processes` (None: one per core). Arguments are checked at once, before
    the first episode is recorded.
    """
    policies = [policy] if isinstance(policy, str) else list(policy)
    if decisions < len(policies) or repeat < 1:
        least = f"steps must be at least {len(policies)}, one for each policy, and repeat at least 1"
        raise ConfigError(f"{least}: got {decisions} and {repeat}")
    whole_seed(seed)
    check_drawable(env_id)
    look = Look.here(env_id, repeat, size, shadow_size)
    with look.env() as env:
        limit, box = env.decisions, (env.low, env.high)
    actors = players(env_id, policies, member, noise, stochastic, box=box)
    several = cores() if processes is None else processes
    who = [digest_of(Path(one).expanduser()) if one.endswith(AGENT) else one for one in policies]
    identity = {**look._asdict(), "steps": decisions, "policy": who, "member": member or 0, "noise": noise or 0.0}
    identity |= {"stochastic": stochastic, "seed": seed}
    how: dict[str, Any] = {"seed": seed, "processes": several, "progress": resolve(progress)}
    what = f"{decisions:,} decisions of {env_id} with the policy {', '.join(policies)}, {_told(look, several)}"
    return FrameRecorder(identity, lambda done: play(look, actors, decisions, limit, done=done, **how), limit, what)


def record_run_frames(
    run: Path,
    *,
    size: int = SIZE,
    shadow_size: int | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> FrameRecorder:
    """The episodes of an online run on a task of the dm_control suite, seed by seed, with every state drawn.

    Actions are those of the run, so none is repeated.
    """
    rows = buffer_of(run)
    look = Look.here(check_redrawable(rows.env_id), 1, size, shadow_size)
    several, spans = cores() if processes is None else processes, list(episode_spans(rows))
    how: dict[str, Any] = {"processes": several, "progress": resolve(progress)}
    what = f"{len(rows):,} decisions of {run}, {_told(look, several)}"
    identity = {"rows": fingerprint(rows), **look._asdict()}
    return FrameRecorder(identity, lambda done: draw(look, rows, spans, done=done, **how), what=what)


def _told(look: Look, processes: int) -> str:
    several = f"{processes} process{'es' * (processes > 1)}"
    return f"{look.size} x {look.size} pixels rendered with {look.backend} in {several}"


def save_frames(recorder: FrameRecorder, out: Path, *, progress: Progress | bool = False) -> Summary:
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
        log.info("recording %s, to %s", recorder.what, out)
        if done:
            log.info("resuming after %d decisions in %s", sum(done), folder)
        for episode in recorder.after(done):
            if not run.begun:  # not earlier: a call that fails before its first episode leaves nothing behind
                held.enter_context(run.work(recorder.identity, lambda: False))
            parts.append(_part(folder, len(parts)))
            write(episode, parts[-1])
        found = _joined(out, parts, recorder, progress)
        for part in parts:  # before the description of the folder, so that a half-deleted folder is still recognised
            part.unlink()
        shutil.rmtree(folder)
    return found


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{SUFFIXES[0]}"


def _joined(out: Path, parts: Sequence[Path], recorder: FrameRecorder, progress: Progress | bool) -> Summary:
    """Join all parts into one file, with one part in memory at a time."""
    shards = [Shard(part) for part in parts]
    lengths, totals, ended = map(np.concatenate, zip(*(one.outcomes() for one in shards), strict=True))
    whole = totals[ended | (lengths >= (recorder.longest or lengths.max()))]
    found = Summary.over(whole, len(totals), int(lengths.sum()), shards[0].known.get("env_id"))
    about: About = {"recorded": json.dumps(recorder.identity), "whole_episodes": found.whole}
    if found.mean_return is not None and found.std is not None:
        about |= {"mean_return": found.mean_return, "std_return": found.std}
    with resolve(progress).phase(f"write {out}", len(parts)) as phase:

        def watched() -> Iterator[Frames]:
            for part in parts:
                yield read(part)
                phase.advance(1)

        write(watched(), out, about)
    return found


def frames_target(out: str, *, new: bool = True) -> Path:
    """Check that `out` is a file that can be written, and is `new`, and return its path."""
    if Path(out).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"frames are written as {' or '.join(SUFFIXES)}, got {out}: choose another --out")
    return Path(target_of(out, new=new))
