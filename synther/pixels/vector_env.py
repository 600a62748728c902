"""A vector environment with rendered frames, for online training from pixels: one environment per seed.

Rendering a frame takes longer than sending it to another process, so the environments run in worker processes. Workers
import this module, so it must not import PyTorch.
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
from synther.envs.episodes import TRAINING, seed_of
from synther.envs.pixels import REPEAT, SIZE, PixelEnv
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError


class Records(NamedTuple):
    """One record of each of W environments. The fields are those of `Frames`."""

    image: NDArray[np.uint8]
    """(W, C, H, W)"""
    action: NDArray[np.float32]
    """(W, A): action that led to the record; 0 at a reset"""
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    """(W,): 0 where the record is terminal"""
    first: NDArray[np.bool_]

    def some(self, which: slice) -> Records:
        """Return the records of some environments."""
        return Records(
            self.image[which], self.action[which], self.reward[which], self.discount[which], self.first[which]
        )

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """Concatenate records along the axis of environments."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Stepped(NamedTuple):
    """Result of one decision in each of S environments."""

    records: Records
    over: NDArray[np.bool_]
    """(S,): whether the episode ended with this decision"""
    restarts: Records
    """First records of the next episodes, of the environments in which an episode ended, in their order"""


class PixelVectorEnv:
    """Runs the task `env_id` for each of `seeds`. Use it as a context manager, or call `close`.

    The initial state of an episode depends only on its seed and on the number of the decision at which it starts. It
    does not depend on the other seeds or on `processes` (None: one per core). `make_env` creates an environment. It is
    called in a worker process.
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
        self._groups = [_Group(make_env, env_id, size, repeat, shadow_size, group) for group in groups]
        self._stack = ExitStack()
        try:
            # Each group has its own pool with one process, so that a request reaches the process of its environments.
            self._workers = [self._stack.enter_context(Workers(1)) for _ in groups]
            self.low, self.high = self._call(_bounds, [()] * count)[0]
        except BaseException:
            self._stack.close()
            raise

    def reset(self, number: int) -> Records:
        """Reset all environments. Their episodes start at decision `number`."""
        return Records.joined(self._call(_reset_all, [(number,)] * len(self._workers)))

    def step(self, actions: NDArray[np.float32], number: int) -> Stepped:
        """Take one action per environment, (S, A), in decision `number`. Reset environments when an episode ends."""
        parts = np.split(actions, self._ends[:-1])
        results = self._call(_stepped, [(part, number) for part in parts])
        records, over, restarts = zip(*results, strict=True)
        return Stepped(Records.joined(records), np.concatenate(over), Records.joined(restarts))

    def _call(self, function: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function in all processes at once, with the arguments for each group, and wait for all results."""
        work = zip(self._workers, self._groups, given, strict=True)
        futures = [worker.submit(function, group, *arguments) for worker, group, arguments in work]
        return [answer(future) for future in futures]

    def close(self) -> None:
        """End all processes and their environments."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class _Group(NamedTuple):
    """Describes the environments of one process."""

    make_env: Callable[..., PixelEnv]
    env_id: str
    size: int
    repeat: int
    shadow_size: int | None
    seeds: tuple[int, ...]

    def envs(self) -> list[tuple[int, PixelEnv]]:
        """Return the environments with their seeds. Call it only in the worker process of this group."""
        return [(seed, _held(*self[:-1], seed)) for seed in self.seeds]


@cache
def _held(
    make_env: Callable[..., PixelEnv], env_id: str, size: int, repeat: int, shadow_size: int | None, seed: int
) -> PixelEnv:
    """Create the environment of a seed on the first call. It stays open until its process ends.

    Its observations are single frames, which are stacked later.
    """
    env = make_env(env_id, size=size, repeat=repeat, stack=1, shadow_size=shadow_size)
    atexit.register(env.close)  # runs before the graphics library is unloaded
    return env


def _bounds(group: _Group) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Create the environments of a group and return their action bounds. Runs in a worker."""
    _, first = group.envs()[0]
    return first.low, first.high


def _reset_all(group: _Group, number: int) -> Records:
    """Reset the environments of a group. Runs in a worker."""
    return Records.joined([_reset(env, seed, number) for seed, env in group.envs()])


def _stepped(group: _Group, actions: NDArray[np.float32], number: int) -> Stepped:
    """Step the environments of a group. Runs in a worker."""
    records, over, restarts = [], [], []
    for (seed, env), action in zip(group.envs(), actions, strict=True):
        image, reward, terminal, timeout = env.step(action)
        if not math.isfinite(reward):
            raise DataError(f"{group.env_id} of seed {seed} returned the reward {reward} in decision {number}")
        records.append(_record(image, action, reward, 1.0 - terminal, first=False))
        over.append(terminal or timeout)
        if over[-1]:
            restarts.append(_reset(env, seed, number + 1))
    empty = records[0].some(slice(0))
    return Stepped(Records.joined(records), np.array(over), Records.joined([empty, *restarts]))


def _reset(env: PixelEnv, seed: int, number: int) -> Records:
    """Reset one environment and return its first record."""
    return _record(env.reset(seed_of((TRAINING, seed, number))), np.zeros_like(env.low), 0.0, 1.0, first=True)


def _record(
    image: NDArray[np.uint8], action: NDArray[np.float32], reward: float, discount: float, first: bool
) -> Records:
    """Return the record of a single environment."""
    rewards, discounts = np.array([[reward], [discount]], np.float32)
    return Records(image[None], np.asarray(action, np.float32)[None], rewards, discounts, np.array([first]))
