"""Frames as a data set of one's own: recorded while an agent of states acts, or drawn again from an online run.

Whoever acts sees the state and not the frames, so agents that were trained in minutes can make data for those that see.
Workers import this module, so it brings no PyTorch with it.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.collect.recorder import FrameRecorder
from synther.collect.rows import agent_policy, buffer_of
from synther.cores import cores
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.datasets.rollouts import CHANCE
from synther.envs.camera import graphics
from synther.envs.episodes import Key
from synther.envs.pixels import REPEAT, SIZE, PixelEnv, check_drawable
from synther.envs.policies import Policy, UniformPolicy
from synther.envs.redrawing import check_redrawable, redraw
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError
from synther.folder import digest_of
from synther.pixels.frames import Frames
from synther.progress import Progress, resolve

Array = NDArray[Any]
Work = tuple[Callable[..., Frames], tuple[Any, ...]]
"""A function of this module that makes an episode, and what it is given."""

_STREAM = 2
"""Of starts, as of other recorded data: none of them is one of an evaluation."""

_AHEAD = 2
"""Episodes a process that may be under way, so that none of them waits for the one that is asked for first."""

_AGENT = ".safetensors"


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
    """Episodes of a task of the dm_control suite, one after another, with `decisions` in all; the last one may be cut.

    `policy` is "random" for uniform actions or an agent's file (.safetensors), of which `member` (None: the first) acts
    without chance, but for `noise`. Frames depend on the seed, and not on how many `processes` (None: one a core) draw
    them. Whatever is wrong is told at once, before the first is asked for.
    """
    if decisions < 1 or repeat < 1:
        raise ConfigError(f"steps and repeat must be at least 1, got {decisions} and {repeat}")
    if seed < 0:
        raise ConfigError(f"the seed must be 0 or more, got {seed}")
    check_drawable(env_id)
    backend = graphics()
    with PixelEnv(env_id, size=size, repeat=repeat, backend=backend) as env:
        limit, low, high = env.decisions, env.low, env.high
    actor = _actor(env_id, policy, member, noise, low, high)
    several = cores() if processes is None else processes
    who = policy if policy == CHANCE else digest_of(Path(policy).expanduser())
    identity = {"env_id": env_id, "steps": decisions, "policy": who, "member": member or 0, "noise": noise or 0.0}
    identity |= {"seed": seed, "repeat": repeat, "size": size, "graphics": backend}

    def after(done: Sequence[int]) -> Iterator[Frames]:
        have = number = 0
        with Workers(several) as workers, resolve(progress).phase(f"record {env_id}", decisions, sum(done)) as phase:
            while have < decisions:  # again only where an episode was over before its time
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
    """The episodes of an online run on a task of the suite, of its first seed, then of the next: every state drawn.

    An action is what the run decided at each state, so nothing is repeated.
    """
    rows = buffer_of(run)
    check_redrawable(rows.env_id)
    backend = graphics()
    spans = list(_spans(rows))
    several = cores() if processes is None else processes
    identity = {"rows": fingerprint(rows), "size": size, "graphics": backend}

    def after(done: Sequence[int]) -> Iterator[Frames]:
        given = ((_redrawn, (rows[span], size, backend)) for span in spans[len(done) :])
        with Workers(several) as workers, resolve(progress).phase(f"draw {run}", len(rows), sum(done)) as phase:
            for episode in _in_order(workers, given):
                phase.advance(len(episode) - 1)
                yield episode

    return FrameRecorder(identity, after)


def _actor(env_id: str, policy: str, member: int | None, noise: float | None, low: Array, high: Array) -> Policy:
    if policy.endswith(_AGENT):
        return agent_policy(env_id, Path(policy).expanduser(), member or 0, noise or 0.0)
    if policy != CHANCE:
        raise ConfigError(f"expected {CHANCE} or AGENT{_AGENT} for a policy of {env_id}, got {policy!r}")
    if member is not None or noise is not None:
        raise ConfigError(f"--member and --noise are for an agent's file ({_AGENT}), the policy is {policy!r}")
    return UniformPolicy(low, high)


def _in_order(workers: Workers, work: Iterator[Work]) -> Iterator[Frames]:
    """What comes of all the work, in its order, while few pieces of it are under way or wait to be asked for."""
    begun: deque[Future[Frames]] = deque()
    for call, given in work:
        begun.append(workers.submit(call, *given))
        if len(begun) >= _AHEAD * workers.count:
            yield answer(begun.popleft())
    while begun:
        yield answer(begun.popleft())


def _spans(rows: Transitions) -> Iterator[slice]:
    """The episodes of `rows`, each of which must go on from row to row."""
    ends = rows.terminal if rows.timeout is None else rows.terminal | rows.timeout
    stops = np.flatnonzero(ends) + 1
    if not len(stops) or stops[-1] != len(rows):
        stops = np.append(stops, len(rows))
    starts = np.append(0, stops[:-1])
    broken = (rows.next_observation[:-1] != rows.observation[1:]).any(1)
    broken[stops[:-1] - 1] = False
    if broken.any():
        row = int(np.argmax(broken))
        raise DataError(f"row {row} ends in another state than row {row + 1} begins with: expected whole episodes")
    yield from (slice(start, stop) for start, stop in zip(starts, stops, strict=True))


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
            raise DataError(
                f"{env_id}: the policy gave an action that is no finite number: it has diverged in training"
            )
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
    """It stays open for as long as this worker process lives."""
    env = PixelEnv(env_id, size=size, repeat=repeat, backend=backend)
    atexit.register(env.close)
    return env
