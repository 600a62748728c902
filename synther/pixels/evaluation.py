"""Evaluation of pixel policies: true returns of whole episodes in rendered environments, played by worker processes.

Rendering takes longer than acting, so each episode is one job of one worker. An episode depends only on its policy, the
seed of its member and its index.
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
from synther.envs.evaluation import Evaluation
from synther.envs.pixels import PixelEnv, check_drawable
from synther.envs.scores import reference
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError, SyntherError
from synther.folder import append_line
from synther.pixels.frames import STACK
from synther.pixels.policy import PixelPolicy
from synther.progress import Phase

_STREAM = 1
"""Random stream of evaluation episodes. Policies are never tested on initial states from their training data."""

_COLOURS = 3
"""Channels of a frame."""

LONGEST = 100_000
"""Decisions after which an episode is assumed to be endless."""


def obstacle(env_id: str) -> str | None:
    """The reason why policies cannot be evaluated on this machine, or None if they can."""
    try:
        check_drawable(env_id)
        graphics()
    except SyntherError as error:
        return str(error)
    return None


def check_sight(stack: tuple[int, ...]) -> None:
    """Raise an error if policies expect other stacks (channels, height, width) than environments render."""
    drawn = STACK * _COLOURS, stack[-1], stack[-1]
    if stack != drawn:
        raise ConfigError(f"agents trained on stacks of shape {stack} cannot be evaluated: environments render {drawn}")


class Env(Protocol):
    """The part of `PixelEnv` that is used here."""

    low: NDArray[np.float32]
    """Lower bounds of the actions, (A,)"""

    def reset(self, seed: int) -> NDArray[np.uint8]: ...
    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.uint8], float, bool, bool]: ...
    def close(self) -> None: ...


class Place(NamedTuple):
    """Which episode."""

    member: int
    episode: int


class Played(NamedTuple):
    """Result of an episode."""

    total: float | None
    """Sum of the rewards. None if the policy returned an action that is not finite."""
    length: int
    """Decisions."""


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
    """Play `episodes` episodes with each member's policy, and yield the results as they come in.

    `seeds` has one seed per member. Episodes in `done` are skipped. Another `number` gives other initial states.
    `shadow_size` is that of the frames that the policy learned from. `workers` of None is one per core. `make_env`
    creates the environment, in a worker.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    check_sight(policy.encoder.frame)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    every = [Place(member, episode) for episode in range(episodes) for member in range(len(seeds))]
    left = [place for place in every if place not in done]
    frozen = [pickle.dumps(policy.member(member), protocol=5) for member in range(len(seeds))] if left else []
    with Workers(max(1, min(len(left), cores() if workers is None else workers))) as pool:
        waited = {}
        for place in left:
            start = _start(seeds[place.member], number, place.episode)
            given = make_env, env_id, repeat, shadow_size, frozen[place.member], start
            waited[pool.submit(_played, *given)] = place
        for future in as_completed(waited):
            yield waited[future], answer(future)


def _start(seed: int, number: int, episode: int) -> int:
    """The seed with which the environment of an episode is reset."""
    return int(np.random.SeedSequence((_STREAM, seed, number, episode)).generate_state(1)[0])


@cache
def _held(make_env: Callable[..., Env], env_id: str, size: int, repeat: int, shadow_size: int | None) -> Env:
    """An environment that stays open until this worker process ends, because making one takes seconds."""
    made = make_env(env_id, size=size, repeat=repeat, stack=STACK, shadow_size=shadow_size)
    atexit.register(made.close)  # before the graphics library is unloaded
    return made


def _played(
    make_env: Callable[..., Env], env_id: str, repeat: int, shadow_size: int | None, frozen: bytes, start: int
) -> Played:
    """In a worker: play one episode."""
    policy: PixelPolicy = pickle.loads(frozen)
    here = _held(make_env, env_id, policy.size, repeat, shadow_size)
    if len(here.low) != len(policy.low):
        raise DataError(
            f"{env_id} takes {len(here.low)} actions and the policy returns {len(policy.low)}: it was trained in "
            "another environment; name it with --env-id"
        )
    rewards: list[float] = []
    seen = here.reset(start)
    while len(rewards) < LONGEST:
        action = policy.act(seen[None, None])[0, 0]
        if not np.isfinite(action).all():
            return Played(None, len(rewards))
        seen, reward, terminal, timeout = here.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{env_id} returned the reward {reward} after reset({start}): expected a finite number")
        rewards.append(reward)
        if terminal or timeout:
            return Played(math.fsum(rewards), len(rewards))
    raise DataError(f"{env_id} did not end within {LONGEST:,} decisions: give it a time limit")


class Book:
    """The finished episodes of `policy`, one per line. Those of other policies or environments stay where they are."""

    def __init__(self, path: Path, policy: str) -> None:
        self.path, self.policy = path, policy
        text = path.read_text() if path.exists() else ""
        self.played: dict[Place, Played] = {}
        lines = [(line, _parsed(line)) for line in text.splitlines(keepends=True)]
        for _, found in lines:
            if found is not None and found[0] == policy:
                self.played[found[1]] = found[2]
        kept = "".join(line for line, found in lines if found is not None)
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def add(self, place: Place, played: Played) -> None:
        append_line(self.path, _line(self.policy, place, played))
        self.played[place] = played


def _line(policy: str, place: Place, played: Played) -> str:
    entry = {**place._asdict(), "return": played.total, "length": played.length, "policy": policy}
    return json.dumps(entry) + "\n"


def _parsed(line: str) -> tuple[str, Place, Played] | None:
    """The policy, and the episode; None where the line was cut or is not ours."""
    try:
        found = json.loads(line)
        place, played = Place(found["member"], found["episode"]), Played(found["return"], found["length"])
        return (found["policy"], place, played) if _line(found["policy"], place, played) == line else None
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
    """Play episodes with every seed of pixel agents. Those in the `book` are not played again. `how` goes to `play`."""
    returns, lengths = np.full((len(seeds), episodes), np.nan), np.zeros((len(seeds), episodes), np.int64)
    known = {} if book is None else {place: one for place, one in book.played.items() if place.episode < episodes}
    new = play(policy, env_id, seeds, episodes=episodes, done=known.keys(), **how)
    for place, played in chain(known.items(), new):
        lengths[place] = played.length
        if played.total is not None:
            returns[place] = played.total
        if book is not None and place not in known:
            book.add(place, played)
        if phase is not None:
            phase.advance(1, "diverged" if played.total is None else f"return {played.total:,.1f}")
    scale = reference(env_id)
    return Evaluation(how.get("number", 0), returns, lengths, None if scale is None else scale.score(returns))
