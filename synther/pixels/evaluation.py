"""Evaluate pixel policies: worker processes play whole episodes in rendered environments and return the true returns.

Rendering takes longer than acting, so each episode is a separate job. An episode depends only on its policy, the seed
of its member, its index and the number of the evaluation.
"""

from __future__ import annotations

import atexit
import json
import math
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import as_completed
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.durable import replacing
from synther.envs.camera import graphics
from synther.envs.episodes import EVALUATIONS, LONGEST, seed_of
from synther.envs.evaluation import Evaluation
from synther.envs.pixels import PixelEnv, check_drawable
from synther.envs.scores import reference
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError, SyntherError
from synther.folder import append_line
from synther.pixels.frames import STACK
from synther.pixels.policy import PixelPolicy
from synther.progress import Phase

_COLOURS = 3
"""Number of channels of a rendered frame."""


def obstacle(env_id: str) -> str | None:
    """Return the reason why policies cannot be evaluated on this machine, or None if they can."""
    try:
        check_drawable(env_id)
        graphics()
    except SyntherError as error:
        return str(error)
    return None


def check_sight(stack: tuple[int, ...]) -> None:
    """Raise an error if environments cannot render the stacks (channels, height, width) that policies expect."""
    rendered = STACK * _COLOURS, stack[-1], stack[-1]
    if stack != rendered:
        raise ConfigError(
            f"agents trained on stacks of shape {stack} cannot be evaluated: environments render {rendered}"
        )


class Env(Protocol):
    """The methods of `PixelEnv` that an evaluation needs."""

    low: NDArray[np.float32]
    """Lower bounds of the actions, (A,)."""

    def reset(self, seed: int) -> NDArray[np.uint8]: ...
    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.uint8], float, bool, bool]: ...
    def close(self) -> None: ...


class Place(NamedTuple):
    """Identifies an episode of an evaluation."""

    member: int
    episode: int


class Played(NamedTuple):
    """Result of one episode."""

    total: float | None
    """Sum of the rewards. None if the policy returned an action that is not finite."""
    length: int
    """Number of decisions."""


def play(
    policy: PixelPolicy,
    env_id: str,
    seeds: Sequence[int],
    *,
    episodes: int = 10,
    number: int = 0,
    repeat: int = 2,
    shadow_size: int | None = None,
    workers: int | None = None,
    done: Collection[Place] = (),
    make_env: Callable[..., Env] = PixelEnv,
) -> Iterator[tuple[Place, Played]]:
    """Play `episodes` episodes with each member's policy, and yield each result as soon as it is available.

    `seeds` has one seed per member. Episodes in `done` are skipped. Another `number` gives other initial states.
    `shadow_size` must be the same as in the frames that the policy has learned from. `workers` is the number of
    processes (None: one per core). `make_env` creates an environment. It is called in a worker.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    check_sight(policy.encoder.frame)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    every = [Place(member, episode) for episode in range(episodes) for member in range(len(seeds))]
    remaining = [place for place in every if place not in done]
    frozen = [pickle.dumps(policy.member(member), protocol=5) for member in range(len(seeds))] if remaining else []
    with Workers(max(1, min(len(remaining), cores() if workers is None else workers))) as pool:
        jobs = {}
        for place in remaining:
            start = seed_of((EVALUATIONS, seeds[place.member], number, place.episode))
            arguments = make_env, env_id, repeat, shadow_size, frozen[place.member], start
            jobs[pool.submit(_played, *arguments)] = place
        for future in as_completed(jobs):
            yield jobs[future], answer(future)


@cache
def _held(make_env: Callable[..., Env], env_id: str, size: int, repeat: int, shadow_size: int | None) -> Env:
    """Create an environment on the first call. It stays open until this worker ends, because creation takes seconds."""
    env = make_env(env_id, size=size, repeat=repeat, stack=STACK, shadow_size=shadow_size)
    atexit.register(env.close)  # runs before the graphics library is unloaded
    return env


def _played(
    make_env: Callable[..., Env], env_id: str, repeat: int, shadow_size: int | None, frozen: bytes, start: int
) -> Played:
    """Play one episode. Runs in a worker."""
    policy: PixelPolicy = pickle.loads(frozen)
    env = _held(make_env, env_id, policy.size, repeat, shadow_size)
    if len(env.low) != len(policy.low):
        raise DataError(
            f"{env_id} takes {len(env.low)} actions and the policy returns {len(policy.low)}: it was trained in "
            "another environment; name it with --env-id"
        )
    rewards: list[float] = []
    stack = env.reset(start)
    while len(rewards) < LONGEST:
        action = policy.act(stack[None, None])[0, 0]
        if not np.isfinite(action).all():
            return Played(None, len(rewards))
        stack, reward, terminal, timeout = env.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{env_id} returned the reward {reward} after reset({start}): expected a finite number")
        rewards.append(reward)
        if terminal or timeout:
            return Played(math.fsum(rewards), len(rewards))
    raise DataError(f"{env_id} did not end within {LONGEST:,} decisions: give it a time limit")


class Book:
    """A file with finished evaluation episodes, one per line, so that they are not played again.

    `played` has the episodes of `policy`. Lines of other policies stay in the file. Lines that were cut are removed.
    """

    def __init__(self, path: Path, policy: str) -> None:
        self.path, self.policy = path, policy
        text = path.read_text() if path.exists() else ""
        self.played: dict[Place, Played] = {}
        lines = [(line, _parsed(line)) for line in text.splitlines(keepends=True)]
        for _, entry in lines:
            if entry is not None and entry[0] == policy:
                self.played[entry[1]] = entry[2]
        kept = "".join(line for line, entry in lines if entry is not None)
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def add(self, place: Place, played: Played) -> None:
        """Write a finished episode to the file."""
        append_line(self.path, _line(self.policy, place, played))
        self.played[place] = played


def _line(policy: str, place: Place, played: Played) -> str:
    entry = {**place._asdict(), "return": played.total, "length": played.length, "policy": policy}
    return json.dumps(entry) + "\n"


def _parsed(line: str) -> tuple[str, Place, Played] | None:
    """Return policy, episode and result from a line, or None if the line was cut or has another format."""
    try:
        entry = json.loads(line)
        place, played = Place(entry["member"], entry["episode"]), Played(entry["return"], entry["length"])
        return (entry["policy"], place, played) if _line(entry["policy"], place, played) == line else None
    except (ValueError, TypeError, KeyError):
        return None


def evaluate(
    policy: PixelPolicy,
    env_id: str,
    seeds: Sequence[int],
    episodes: int,
    *,
    phase: Phase | None = None,
    book: Book | None = None,
    **how: Any,
) -> Evaluation:
    """Evaluate pixel agents: play `episodes` episodes for each of `seeds`, and return all results.

    Episodes in the `book` are not played again. New episodes are added to it. `how` has further arguments of `play`.
    """
    returns, lengths = np.full((len(seeds), episodes), np.nan), np.zeros((len(seeds), episodes), np.int64)
    known = {} if book is None else {place: one for place, one in book.played.items() if place.episode < episodes}
    new = play(policy, env_id, seeds, episodes=episodes, done=known.keys(), **how)
    for place, played in chain(known.items(), new):
        if played.total is not None:
            returns[place], lengths[place] = played.total, played.length
        if book is not None and place not in known:
            book.add(place, played)
        if phase is not None:
            phase.advance(1, "diverged" if played.total is None else f"return {played.total:,.1f}")
    scale = reference(env_id)
    return Evaluation(how.get("number", 0), returns, lengths, None if scale is None else scale.score(returns))
