"""Create data sets of frames: recorded while a state-based agent acts, or rendered from the states of an online run.

The policy acts on the state and not on the frames. So agents that were trained within minutes can create data for pixel
agents.
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
    """Episodes that are recorded while a caller iterates over them. Every iteration gives the same episodes."""

    identity: dict[str, Any]
    """All options that the episodes depend on, as JSON values."""
    after: Callable[[Sequence[int]], Iterator[Frames]]
    """after(lengths) yields the remaining episodes. `lengths` has the number of decisions of each existing episode."""
    longest: int | None = None
    """Number of decisions of an episode that reaches its time limit. None: that of the longest episode."""
    what: str = "frames"
    """Description of the recording for log messages."""


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
    """Record episodes of a task of the dm_control suite. All episodes together have `decisions` decisions.

    `policy` is "random" for uniform actions, or an agent's file (.safetensors). `member` selects the member of the
    agent (None: the first). For `noise` and `stochastic` see `players`. Several policies get equal shares of the
    decisions. The last episode of each share may be cut. Frames depend on the seed, but not on the number of
    `processes` (None: one per core). This function checks all arguments before any episode is recorded.
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
    count = cores() if processes is None else processes
    digests = [digest_of(Path(one).expanduser()) if one.endswith(AGENT) else one for one in policies]
    identity = {**look._asdict(), "steps": decisions, "policy": digests, "member": member or 0, "noise": noise or 0.0}
    identity |= {"stochastic": stochastic, "seed": seed}
    how: dict[str, Any] = {"seed": seed, "processes": count, "progress": resolve(progress)}
    what = f"{decisions:,} decisions of {env_id} with the policy {', '.join(policies)}, {_rendering(look, count)}"
    return FrameRecorder(identity, lambda done: play(look, actors, decisions, limit, done=done, **how), limit, what)


def record_run_frames(
    run: Path,
    *,
    size: int = SIZE,
    shadow_size: int | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> FrameRecorder:
    """Render every state of an online run on a task of the dm_control suite: all episodes of one seed after the other.
    Each frame follows one action of the run, so the action repeat is 1."""
    rows = buffer_of(run)
    look = Look.here(check_redrawable(rows.env_id), 1, size, shadow_size)
    count, spans = cores() if processes is None else processes, list(episode_spans(rows))
    how: dict[str, Any] = {"processes": count, "progress": resolve(progress)}
    what = f"{len(rows):,} decisions of {run}, {_rendering(look, count)}"
    identity = {"rows": fingerprint(rows), **look._asdict()}
    return FrameRecorder(identity, lambda done: draw(look, rows, spans, done=done, **how), what=what)


def _rendering(look: Look, processes: int) -> str:
    """Describe size, graphics library and number of processes for a log message."""
    count = f"{processes} process{'es' * (processes > 1)}"
    return f"{look.size} x {look.size} pixels rendered with {look.backend} in {count}"


def save_frames(recorder: FrameRecorder, out: Path, *, progress: Progress | bool = False) -> Summary:
    """Record all episodes and write them to the file `out`, which is created when it is complete. Until then, finished
    episodes are in the folder `OUT.partial`. After an interruption, the same call continues from there. If this folder
    has episodes of another recorder, an error is raised."""
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
            if not run.begun:  # a call that fails before its first episode must not leave a folder behind
                held.enter_context(run.work(recorder.identity, lambda: False))
            parts.append(_part(folder, len(parts)))
            write(episode, parts[-1])
        summary = _joined(out, parts, recorder, progress)
        for part in parts:  # the folder's description is deleted last, so that a half-deleted folder is recognised
            part.unlink()
        shutil.rmtree(folder)
    return summary


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{SUFFIXES[0]}"


def _joined(out: Path, parts: Sequence[Path], recorder: FrameRecorder, progress: Progress | bool) -> Summary:
    """Join all parts into one file, with one part in memory at a time, and return a summary of the data set."""
    shards = [Shard(part) for part in parts]
    lengths, totals, ended = map(np.concatenate, zip(*(one.outcomes() for one in shards), strict=True))
    whole = totals[ended | (lengths >= (recorder.longest or lengths.max()))]
    summary = Summary.over(whole, len(totals), int(lengths.sum()), shards[0].known.get("env_id"))
    about: About = {"recorded": json.dumps(recorder.identity), "whole_episodes": summary.whole}
    if summary.mean_return is not None and summary.std is not None:
        about |= {"mean_return": summary.mean_return, "std_return": summary.std}
    with resolve(progress).phase(f"write {out}", len(parts)) as phase:

        def watched() -> Iterator[Frames]:
            for part in parts:
                yield read(part)
                phase.advance(1)

        write(watched(), out, about)
    return summary


def frames_target(out: str, *, new: bool = True) -> Path:
    """Check that frames can be written to the file `out`, and return its path. With `new` it must not exist yet."""
    if Path(out).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"frames are written as {' or '.join(SUFFIXES)}, got {out}: choose another --out")
    return Path(target_of(out, new=new))
