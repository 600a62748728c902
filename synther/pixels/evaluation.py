"""How good policies that see are: true returns of whole episodes in rendered worlds, each played by a worker process.

To draw a world takes longer than to act on it, so an episode is one piece of work, played alone: how it goes depends on
its policy, its member's seed and its place among the episodes, and on nothing else.
"""

from __future__ import annotations

import atexit
import math
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import as_completed
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.envs.camera import graphics
from synther.envs.pixels import PixelWorld, check_drawable
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError, SyntherError
from synther.pixels.frames import STACK
from synther.pixels.policy import PixelPolicy

_STREAM = 1
"""Sets these episodes apart from those that data are made of: no policy is tested on a start it has learned from."""

_COLOURS = 3
"""Channels of a frame."""

_LONGEST = 100_000
"""Decisions after which an episode is taken to have no end."""


def obstacle(env_id: str) -> str | None:
    """Why no policy can be evaluated here, in words; None where it can."""
    try:
        check_drawable(env_id)
        graphics()
    except SyntherError as error:
        return str(error)
    return None


def check_sight(stack: tuple[int, ...]) -> None:
    """Refuse what sees other stacks of frames, (channels, height, width), than are drawn here."""
    drawn = STACK * _COLOURS, stack[-1], stack[-1]
    if stack != drawn:
        raise ConfigError(
            f"agents that see stacks of {stack} cannot be evaluated: worlds are drawn in colour and square, {drawn}"
        )


class World(Protocol):
    """As `PixelWorld` is."""

    low: NDArray[np.float32]
    """Of the actions, (A,)"""

    def reset(self, seed: int) -> NDArray[np.uint8]: ...
    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.uint8], float, bool, bool]: ...
    def close(self) -> None: ...


class Place(NamedTuple):
    """Of an episode."""

    member: int
    episode: int


class Played(NamedTuple):
    """What became of it."""

    total: float | None
    """The sum of its rewards, or None where the policy gave an action that is no finite number."""
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
    workers: int | None = None,
    done: Collection[Place] = (),
    world: Callable[..., World] = PixelWorld,
) -> Iterator[tuple[Place, Played]]:
    """So many episodes of each member, one a seed, but for those that are `done`, as they come to their ends.

    Episodes of another `number` have other starts. `workers` of None are as many as there are cores. `world` makes
    what is played in, in a worker.
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
            waited[pool.submit(_played, world, env_id, repeat, frozen[place.member], start)] = place
        for future in as_completed(waited):
            yield waited[future], answer(future)


def _start(seed: int, number: int, episode: int) -> int:
    """What the world of an episode is reset with."""
    return int(np.random.SeedSequence((_STREAM, seed, number, episode)).generate_state(1)[0])


@cache
def _held(world: Callable[..., World], env_id: str, size: int, repeat: int) -> World:
    """It stays open for as long as this worker process lives: to make one takes seconds."""
    made = world(env_id, size=size, repeat=repeat, stack=STACK)
    atexit.register(made.close)  # before the graphics library goes, which was imported to make it
    return made


def _played(world: Callable[..., World], env_id: str, repeat: int, frozen: bytes, start: int) -> Played:
    """In a worker: one episode."""
    policy: PixelPolicy = pickle.loads(frozen)
    here = _held(world, env_id, policy.size, repeat)
    if len(here.low) != len(policy.low):
        raise DataError(
            f"{env_id} takes {len(here.low)} actions and the policy gives {len(policy.low)}: it is of another "
            "environment, which --env-id names"
        )
    rewards: list[float] = []
    seen = here.reset(start)
    while len(rewards) < _LONGEST:
        action = policy.act(seen[None, None])[0, 0]
        if not np.isfinite(action).all():
            return Played(None, len(rewards))
        seen, reward, terminal, timeout = here.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{env_id} returned the reward {reward} after reset({start}): expected a finite number")
        rewards.append(reward)
        if terminal or timeout:
            return Played(math.fsum(rewards), len(rewards))
    raise DataError(f"{env_id} was not over after {_LONGEST:,} decisions: give it a time limit")
