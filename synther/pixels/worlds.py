"""Rendered worlds that go on decision by decision while somebody learns from what they show: one a seed.

To draw a frame takes longer than to send it, so the worlds are in processes of their own. These import this module,
which brings no PyTorch with it.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.envs.pixels import REPEAT, SIZE, PixelWorld
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError

_STREAM = 3
"""Sets these episodes apart from those of evaluations and of recorded data."""


class Records(NamedTuple):
    """A record of each of W worlds, as `Frames` has them."""

    image: NDArray[np.uint8]
    """(W, C, H, W)"""
    action: NDArray[np.float32]
    """(W, A): the one that led to the record, and 0 at a reset"""
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    """(W,): 0 where the record is terminal"""
    first: NDArray[np.bool_]

    def some(self, which: slice) -> Records:
        return Records(
            self.image[which], self.action[which], self.reward[which], self.discount[which], self.first[which]
        )

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Stepped(NamedTuple):
    """What came of a decision in every world."""

    records: Records
    over: NDArray[np.bool_]
    """(S,): whose episode has ended with it"""
    restarts: Records
    """With what those worlds have begun anew, in their order"""


class PixelWorlds:
    """The task `env_id` for each of `seeds`. Use it as a context manager, or close it.

    How an episode begins depends on its seed and on the number of the decision before which it does, and on nothing
    else: not on the other seeds, nor on the `processes` (None: one a core). `world` makes them, in their processes.
    """

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        *,
        size: int = SIZE,
        repeat: int = REPEAT,
        processes: int | None = None,
        world: Callable[..., PixelWorld] = PixelWorld,
    ) -> None:
        if not seeds or (processes is not None and processes < 1):
            raise ConfigError(f"expected a seed and a process at least, got {list(seeds)} and {processes}")
        count = min(len(seeds), cores() if processes is None else processes)
        groups = [tuple(map(int, some)) for some in np.array_split(np.array(seeds), count)]
        self._ends = np.cumsum([len(group) for group in groups])
        self._shares = [_Share(world, env_id, size, repeat, group) for group in groups]
        self._stack = ExitStack()
        try:
            # One process each, so that whoever is asked has the worlds that the question is about.
            self._places = [self._stack.enter_context(Workers(1)) for _ in groups]
            self.low, self.high = self._ask(_bounds, [()] * count)[0]
        except BaseException:
            self._stack.close()
            raise

    def begin(self, number: int) -> Records:
        """Start all worlds over, before the decision of that number."""
        return Records.joined(self._ask(_begun, [(number,)] * len(self._places)))

    def step(self, actions: NDArray[np.float32], number: int) -> Stepped:
        """One action (S, A) each, the decision of that `number`. A world that is over starts over."""
        parts = np.split(actions, self._ends[:-1])
        found = self._ask(_stepped, [(own, number) for own in parts])
        records, over, restarts = zip(*found, strict=True)
        return Stepped(Records.joined(records), np.concatenate(over), Records.joined(restarts))

    def _ask(self, what: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Every process at once, and then wait for all."""
        work = zip(self._places, self._shares, given, strict=True)
        asked = [place.submit(what, share, *own) for place, share, own in work]
        return [answer(future) for future in asked]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class _Share(NamedTuple):
    """Of the worlds: those of one process."""

    world: Callable[..., PixelWorld]
    env_id: str
    size: int
    repeat: int
    seeds: tuple[int, ...]

    def worlds(self) -> list[tuple[int, PixelWorld]]:
        """In that process: each with its seed."""
        return [(seed, _held(*self[:-1], seed)) for seed in self.seeds]


@cache
def _held(world: Callable[..., PixelWorld], env_id: str, size: int, repeat: int, seed: int) -> PixelWorld:
    """The world of a seed, for as long as its process lives. It shows single frames."""
    made = world(env_id, size=size, repeat=repeat, stack=1)
    atexit.register(made.close)  # before the graphics library goes, which was imported to make it
    return made


def _bounds(share: _Share) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """In a process: make its worlds, and say which actions they take."""
    _, first = share.worlds()[0]
    return first.low, first.high


def _begun(share: _Share, number: int) -> Records:
    """In a process: its worlds start over."""
    return Records.joined([_reset(world, seed, number) for seed, world in share.worlds()])


def _stepped(share: _Share, actions: NDArray[np.float32], number: int) -> Stepped:
    """In a process: its worlds take their actions."""
    records, over, restarts = [], [], []
    for (seed, world), action in zip(share.worlds(), actions, strict=True):
        image, reward, terminal, timeout = world.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{share.env_id} of seed {seed} returned the reward {reward} in decision {number}")
        records.append(_record(image, action, reward, 1.0 - terminal, first=False))
        over.append(terminal or timeout)
        if over[-1]:
            restarts.append(_reset(world, seed, number + 1))
    none = records[0].some(slice(0))
    return Stepped(Records.joined(records), np.array(over), Records.joined([none, *restarts]))


def _reset(world: PixelWorld, seed: int, number: int) -> Records:
    start = int(np.random.SeedSequence((_STREAM, seed, number)).generate_state(1)[0])
    return _record(world.reset(start), np.zeros_like(world.low), 0.0, 1.0, first=True)


def _record(
    image: NDArray[np.uint8], action: NDArray[np.float32], reward: float, discount: float, first: bool
) -> Records:
    """Of a single world."""
    earned, worth = np.array([[reward], [discount]], np.float32)
    return Records(image[None], np.asarray(action, np.float32)[None], earned, worth, np.array([first]))
