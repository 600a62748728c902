"""A vector of rendered environments for online training from pixels: one environment per seed.

Rendering a frame takes longer than sending it, so the environments run in worker processes. These import this module,
which does not import PyTorch.
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
from synther.envs.pixels import REPEAT, SIZE, PixelEnv
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError

_STREAM = 3
"""Random stream of these episodes. Evaluations and recorded data use other streams."""


class Records(NamedTuple):
    """One record of each of W environments, with the fields of `Frames`."""

    image: NDArray[np.uint8]
    """(W, C, H, W)"""
    action: NDArray[np.float32]
    """(W, A): the action that led to the record; 0 at a reset"""
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
    """Result of one decision in every environment."""

    records: Records
    over: NDArray[np.bool_]
    """(S,): whether the episode ended with this decision"""
    restarts: Records
    """First records of the next episodes, for those environments in order"""


class PixelVectorEnv:
    """The task `env_id` for each of `seeds`. Use it as a context manager, or close it.

    The initial state of an episode depends only on its seed and on the number of the decision before which it starts.
    It does not depend on the other seeds or on `processes` (None: one per core). `make_env` creates an environment, in
    a worker process.
    """

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        *,
        size: int = SIZE,
        repeat: int = REPEAT,
        shadow_size: int | None = None,
        processes: int | None = None,
        make_env: Callable[..., PixelEnv] = PixelEnv,
    ) -> None:
        if not seeds or (processes is not None and processes < 1):
            raise ConfigError(f"expected at least one seed and one process, got {list(seeds)} and {processes}")
        count = min(len(seeds), cores() if processes is None else processes)
        groups = [tuple(map(int, some)) for some in np.array_split(np.array(seeds), count)]
        self._ends = np.cumsum([len(group) for group in groups])
        self._shares = [_Share(make_env, env_id, size, repeat, shadow_size, group) for group in groups]
        self._stack = ExitStack()
        try:
            # One process per group, so that each request reaches the process that holds these environments.
            self._places = [self._stack.enter_context(Workers(1)) for _ in groups]
            self.low, self.high = self._ask(_bounds, [()] * count)[0]
        except BaseException:
            self._stack.close()
            raise

    def reset(self, number: int) -> Records:
        """Reset all environments, before decision `number`."""
        return Records.joined(self._ask(_reset_all, [(number,)] * len(self._places)))

    def step(self, actions: NDArray[np.float32], number: int) -> Stepped:
        """Take one action per environment (S, A) in decision `number`. Environments whose episode ends are reset."""
        parts = np.split(actions, self._ends[:-1])
        found = self._ask(_stepped, [(own, number) for own in parts])
        records, over, restarts = zip(*found, strict=True)
        return Stepped(Records.joined(records), np.concatenate(over), Records.joined(restarts))

    def _ask(self, what: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask all processes at once, then wait for all answers."""
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
    """The environments of one process."""

    make_env: Callable[..., PixelEnv]
    env_id: str
    size: int
    repeat: int
    shadow_size: int | None
    seeds: tuple[int, ...]

    def envs(self) -> list[tuple[int, PixelEnv]]:
        """In that process: the environments with their seeds."""
        return [(seed, _held(*self[:-1], seed)) for seed in self.seeds]


@cache
def _held(
    make_env: Callable[..., PixelEnv], env_id: str, size: int, repeat: int, shadow_size: int | None, seed: int
) -> PixelEnv:
    """The environment of a seed, which stays open until its process ends. It returns single frames."""
    made = make_env(env_id, size=size, repeat=repeat, stack=1, shadow_size=shadow_size)
    atexit.register(made.close)  # before the graphics library is unloaded
    return made


def _bounds(share: _Share) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """In a worker: make the environments and return their action bounds."""
    _, first = share.envs()[0]
    return first.low, first.high


def _reset_all(share: _Share, number: int) -> Records:
    """In a worker: reset its environments."""
    return Records.joined([_reset(env, seed, number) for seed, env in share.envs()])


def _stepped(share: _Share, actions: NDArray[np.float32], number: int) -> Stepped:
    """In a worker: step its environments."""
    records, over, restarts = [], [], []
    for (seed, env), action in zip(share.envs(), actions, strict=True):
        image, reward, terminal, timeout = env.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{share.env_id} of seed {seed} returned the reward {reward} in decision {number}")
        records.append(_record(image, action, reward, 1.0 - terminal, first=False))
        over.append(terminal or timeout)
        if over[-1]:
            restarts.append(_reset(env, seed, number + 1))
    none = records[0].some(slice(0))
    return Stepped(Records.joined(records), np.array(over), Records.joined([none, *restarts]))


def _reset(env: PixelEnv, seed: int, number: int) -> Records:
    start = int(np.random.SeedSequence((_STREAM, seed, number)).generate_state(1)[0])
    return _record(env.reset(start), np.zeros_like(env.low), 0.0, 1.0, first=True)


def _record(
    image: NDArray[np.uint8], action: NDArray[np.float32], reward: float, discount: float, first: bool
) -> Records:
    """Record of a single environment."""
    earned, worth = np.array([[reward], [discount]], np.float32)
    return Records(image[None], np.asarray(action, np.float32)[None], earned, worth, np.array([first]))
