"""Frames as a data set: recorded while a state-based agent acts, or drawn again from an online run.

The policy sees the state and not the frames, so agents that were trained in minutes can make data for pixel agents.
Workers import this module, so it must not import PyTorch.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.collect.rows import AGENT, Summary, agent_policy, buffer_of
from synther.cores import cores
from synther.data.episodes import episode_spans
from synther.data.fingerprint import fingerprint
from synther.data.formats.targets import target_of
from synther.data.transitions import Transitions
from synther.datasets.rollouts import CHANCE
from synther.durable import partial_folder
from synther.envs.camera import graphics
from synther.envs.episodes import Key
from synther.envs.pixels import REPEAT, SIZE, PixelEnv, check_drawable
from synther.envs.policies import Policy, UniformPolicy
from synther.envs.redrawing import check_redrawable, redraw
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError
from synther.folder import RunFolder, digest_of
from synther.pixels.files import read, write
from synther.pixels.formats.hdf5 import SUFFIXES, Shard
from synther.pixels.frames import Frames
from synther.plain import whole_seed
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

Array = NDArray[Any]
Work = tuple[Callable[..., Frames], tuple[Any, ...]]
"""A function of this module that makes an episode, and its arguments."""

_STREAM = 2
"""Of starts, as of other recorded data: none of them is used in an evaluation."""

_AHEAD = 2
"""Episodes per process that may be under way, so that no process waits for the episode that is yielded next."""


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


def record_frames(
    env_id: str,
    policy: str,
    decisions: int,
    *,
    member: int | None = None,
    noise: float | None = None,
    seed: int = 0,
    repeat: int = REPEAT,
    size: int = SIZE,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> FrameRecorder:
    """Episodes of a task of the dm_control suite, with `decisions` in all; the last one may be cut.

    `policy` is "random" for uniform actions or an agent's file (.safetensors), whose `member` (None: the first) acts
    deterministically but for `noise`. Frames depend on the seed, but not on the number of `processes` (None: one per
    core). Arguments are checked at once, before the first episode is recorded.
    """
    if decisions < 1 or repeat < 1:
        raise ConfigError(f"steps and repeat must be at least 1, got {decisions} and {repeat}")
    whole_seed(seed)
    check_drawable(env_id)
    backend = graphics()
    with PixelEnv(env_id, size=size, repeat=repeat, backend=backend) as env:
        limit, low, high = env.decisions, env.low, env.high
    actor = agent_policy(env_id, policy, member, noise) or UniformPolicy(low, high)
    who = policy
    if policy.endswith(AGENT):
        who = digest_of(Path(policy).expanduser())
    elif policy != CHANCE:
        raise ConfigError(f"--policy must be {CHANCE} or AGENT{AGENT} for {env_id}, got {policy!r}")
    several = cores() if processes is None else processes
    identity = {"env_id": env_id, "steps": decisions, "policy": who, "member": member or 0, "noise": noise or 0.0}
    identity |= {"seed": seed, "repeat": repeat, "size": size, "graphics": backend}

    def after(done: Sequence[int]) -> Iterator[Frames]:
        have = number = 0
        with Workers(several) as workers, resolve(progress).phase(f"record {env_id}", decisions, sum(done)) as phase:
            while have < decisions:  # again only if an episode ended before its time limit
                lengths = [min(limit, decisions - start) for start in range(have, decisions, limit)]
                keys = [(_STREAM, seed, 0, number + place) for place in range(len(lengths))]
                given = [(env_id, backend, repeat, size, actor, *one) for one in zip(keys, lengths, strict=True)]
                there = done[number : number + len(lengths)]
                have += sum(there)
                number += len(lengths)
                for episode in _in_order(workers, ((_recorded, one) for one in given[len(there) :])):
                    have += len(episode) - 1
                    phase.advance(len(episode) - 1)
                    yield episode

    return FrameRecorder(identity, after, limit)


def record_run_frames(
    run: Path, *, size: int = SIZE, processes: int | None = None, progress: Progress | bool = False
) -> FrameRecorder:
    """The episodes of an online run on a task of the dm_control suite, seed by seed, with every state drawn.

    Actions are those of the run, so none is repeated.
    """
    rows = buffer_of(run)
    check_redrawable(rows.env_id)
    backend = graphics()
    spans = list(episode_spans(rows))
    several = cores() if processes is None else processes
    identity = {"rows": fingerprint(rows), "size": size, "graphics": backend}

    def after(done: Sequence[int]) -> Iterator[Frames]:
        given = ((_redrawn, (rows[span], size, backend)) for span in spans[len(done) :])
        with Workers(several) as workers, resolve(progress).phase(f"draw {run}", len(rows), sum(done)) as phase:
            for episode in _in_order(workers, given):
                phase.advance(len(episode) - 1)
                yield episode

    return FrameRecorder(identity, after)


def _in_order(workers: Workers, work: Iterator[Work]) -> Iterator[Frames]:
    """The results of all the work, in its order. Few pieces are under way or wait to be yielded at any time."""
    begun: deque[Future[Frames]] = deque()
    for call, given in work:
        begun.append(workers.submit(call, *given))
        if len(begun) >= _AHEAD * workers.count:
            yield answer(begun.popleft())
    while begun:
        yield answer(begun.popleft())


def _recorded(env_id: str, backend: str, repeat: int, size: int, policy: Policy, key: Key, most: int) -> Frames:
    """In a worker: one episode, of at most so many decisions."""
    env = _env(env_id, backend, repeat, size)
    rng = np.random.default_rng(np.random.SeedSequence(key).spawn(1)[0])
    env.reset(int(np.random.SeedSequence(key).generate_state(1)[0]))
    images, actions, rewards = [env.frame], [np.zeros_like(env.low)], [0.0]
    terminal = timeout = False
    while len(images) <= most and not (terminal or timeout):
        action = np.asarray(policy.act(env.state[None], rng)[0], np.float32)
        if not np.isfinite(action).all():
            raise DataError(f"{env_id}: the policy's action is not finite: it has diverged in training")
        _, reward, terminal, timeout = env.step(action)
        images.append(env.frame)
        actions.append(action)
        rewards.append(reward)
    known = {"env_id": env_id, "action_repeat": repeat, "low": env.low, "high": env.high}
    return _episode(np.stack(images), np.stack(actions), rewards, terminal, **known)


def _redrawn(rows: Transitions, size: int, backend: str) -> Frames:
    """In a worker: the frames of one episode of `rows`."""
    assert rows.env_id is not None  # it was checked
    seen = np.concatenate([rows.observation, rows.next_observation[-1:]])
    images = redraw(rows.env_id, seen, rows.action, size, backend)
    actions = np.concatenate([np.zeros_like(rows.action[:1]), rows.action])
    return _episode(images, actions, [0.0, *rows.reward], bool(rows.terminal[-1]), env_id=rows.env_id, action_repeat=1)


def _episode(images: Array, actions: Array, rewards: list[float], terminal: bool, **known: Any) -> Frames:
    discount = np.ones(len(images), np.float32)
    discount[-1] = 1 - terminal
    return Frames(images, actions, np.array(rewards), discount, np.arange(len(images)) == 0, **known)


@cache
def _env(env_id: str, backend: str, repeat: int, size: int) -> PixelEnv:
    """Open for as long as the worker process lives."""
    env = PixelEnv(env_id, size=size, repeat=repeat, backend=backend)
    atexit.register(env.close)
    return env


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
        if done:
            log.info("resuming after %d decisions in %s", sum(done), folder)
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


def _joined(out: Path, parts: Sequence[Path], longest: int | None, progress: Progress | bool) -> Summary:
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
    return Summary.over(whole, len(seen), int(lengths.sum()), env_id)


def frames_target(out: str, *, new: bool = True) -> Path:
    """Check that `out` is a file that can be written, and is `new`, and return its path."""
    if Path(out).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"frames are written as {' or '.join(SUFFIXES)}, got {out}: choose another --out")
    return Path(target_of(out, new=new))
