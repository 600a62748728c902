"""A vector environment for online training: one environment per seed, in one process or in several.

A MuJoCo step takes 0.1 to 0.5 ms. A message to another process and back takes 0.3 ms (`docs/online.md`). So several
processes help with several environments, but never with a single environment.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.data import gym_spaces
from synther.data.spaces import Space
from synther.envs.episodes import TRAINING, action_bounds, number_of_choices, seed_of
from synther.envs.making import attempt, begun, opened, stepped, warn_of_images
from synther.errors import ConfigError, DataError, Failed, SyntherError

Array = NDArray[np.float32]

_LARGEST = float(np.finfo(np.float32).max)

_PATIENCE = 5.0
"""Seconds that a process has to exit by itself before it is killed."""


class Stepped(NamedTuple):
    """Result of one step in S environments."""

    rows: Array
    """(S, width): observation, action, reward, terminal, next observation"""
    timeouts: NDArray[np.bool_]
    """(S,): whether the episode was truncated in a non-terminal state, for example by a time limit"""
    observations: Array
    """(S, O): current observations; after a reset, if the episode ended with this step"""


class VectorEnv:
    """Runs one environment for each of `seeds`. Use it as a context manager, or call `close`.

    The initial state of an episode depends only on its seed and on the number of the step at which it starts. It does
    not depend on the other seeds or on `processes` (None: one less than the number of cores). There is at most one
    process per seed. `options` are passed to `gymnasium.make`.
    """

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        *,
        options: Mapping[str, Any] | None = None,
        processes: int | None = None,
    ) -> None:
        if not seeds or (processes is not None and processes < 1):
            raise ConfigError(f"expected at least one seed and one process, got {list(seeds)} and {processes}")
        options_json = json.dumps(dict(options or {}))
        self.low, self.high, self.action_space, self.observation_space, self.observation_size, self.choices = (
            _properties(env_id, options_json)
        )
        wanted = min(len(seeds), max(1, cores() - 1) if processes is None else processes)
        self._ends = np.cumsum([len(some) for some in np.array_split(np.arange(len(seeds)), wanted)])
        groups = [list(some) for some in np.split(np.array(seeds), self._ends[:-1])]
        self._stack = ExitStack()
        try:
            kind = _Local if wanted == 1 else _Remote
            self._groups: list[_Group] = [kind(env_id, options_json, group) for group in groups]
            for one in self._groups:
                self._stack.callback(one.close)
        except BaseException:
            self._stack.close()
            raise
        self.observations = np.zeros((len(seeds), self.observation_size), np.float32)
        """Current observations, (S, O)."""

    def reset(self, step: int) -> None:
        """Reset all environments. Their episodes start at step number `step`."""
        for group in self._groups:
            group.request("reset", step)
        self.observations = np.concatenate(self._answers())

    def step(self, actions: Array, number: int) -> Stepped:
        """Take one action per environment, (S, A), in step `number`. Environments are reset when their episode ends."""
        for group, part in zip(self._groups, np.split(actions, self._ends[:-1]), strict=True):
            group.request("step", part, number)
        taken = Stepped(*(np.concatenate(part) for part in zip(*self._answers(), strict=True)))
        self.observations = taken.observations
        return taken

    def _answers(self) -> list[Any]:
        """Collect the answers of all groups, then raise the first error among them."""
        answers = [group.answer() for group in self._groups]
        for one in answers:
            if isinstance(one, SyntherError):
                raise one
        return answers

    def close(self) -> None:
        """Close all environments and end their processes."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class _Env:
    """One environment of a `VectorEnv`. It returns flat float32 rows and resets itself when its episode ends."""

    def __init__(self, env: Any, env_id: str, seed: int) -> None:
        self.env, self.env_id, self.seed = env, env_id, seed
        self._size = gym_spaces.width(env.observation_space)
        self.observation: Array = np.zeros(self._size, np.float32)
        """The current observation, (O,)."""

    def reset(self, step: int) -> None:
        """Start an episode at step number `step`."""
        start = seed_of((TRAINING, self.seed, step))
        where = f"reset(seed={start}) before step {step}"
        raw = attempt(self._who, where, begun, self.env, seed=start)
        self.observation = self._flat(raw, where)

    def step(self, action: Array, number: int) -> tuple[Array, bool]:
        """Take an action. Return the row of this step, and whether the episode was truncated and not terminated."""
        where = f"step {number}"
        space = self.env.action_space
        taken = np.array(action, space.dtype) if space.shape else space.dtype.type(np.rint(action[0]))
        if taken.dtype == np.float64:  # a float32 bound may lie outside the float64 bounds
            taken = np.clip(taken, space.low, space.high)
        raw, reward, terminated, truncated = attempt(self._who, where, stepped, self.env, taken)
        if not abs(reward) <= _LARGEST:
            raise DataError(f"{self._who} returned the reward {reward} in {where}: expected a finite number of float32")
        following = self._flat(raw, where)
        row = np.concatenate([self.observation, action, [reward, terminated], following], dtype=np.float32)
        self.observation = following
        if terminated or truncated:
            self.reset(number + 1)
        return row, truncated and not terminated

    @property
    def _who(self) -> str:
        """Name of the environment for error messages."""
        return f"{self.env_id} of seed {self.seed}"

    def _flat(self, observation: Any, where: str) -> Array:
        """Return the flat observation as float32. Raises an error if its size is wrong or a value is not finite."""
        raw = attempt(self._who, where, gym_spaces.flat, self.env.observation_space, observation)
        with np.errstate(over="ignore"):  # an overflow gives infinity, which is checked below
            flat: Array = attempt(self._who, where, np.array, raw, np.float32)
        if len(flat) != self._size:
            raise DataError(f"{self._who} returned {len(flat)} numbers in {where}: its space has {self._size}")
        if not np.isfinite(flat).all():
            column = int(np.argmin(np.isfinite(flat)))
            raise DataError(f"{self._who} returned {flat[column]} in observation column {column} in {where}")
        return flat


class _Group(Protocol):
    """Some of the environments, which run in the same process."""

    def request(self, what: str, *given: Any) -> None:
        """Start a `reset` or a `step`."""

    def answer(self) -> Any:
        """Return the result of the last request, which may be an error."""

    def close(self) -> None: ...


class _Local:
    """A group of environments in this process."""

    def __init__(self, env_id: str, options: str, seeds: Sequence[int]) -> None:
        self._stack = ExitStack()
        raw = [self._stack.enter_context(opened(env_id, **json.loads(options))) for _ in seeds]
        self._envs = [_Env(env, env_id, int(seed)) for env, seed in zip(raw, seeds, strict=True)]
        self._answer: Any = None

    def request(self, what: str, *given: Any) -> None:
        try:
            self._answer = self._reset(*given) if what == "reset" else self._step(*given)
        except SyntherError as error:
            self._answer = error

    def answer(self) -> Any:
        return self._answer

    def close(self) -> None:
        self._stack.close()

    def _reset(self, step: int) -> Array:
        for env in self._envs:
            env.reset(step)
        return self._observations()

    def _step(self, actions: Array, number: int) -> Stepped:
        taken = [env.step(action, number) for env, action in zip(self._envs, actions, strict=True)]
        rows, timeouts = zip(*taken, strict=True)
        return Stepped(np.stack(rows), np.array(timeouts), self._observations())

    def _observations(self) -> Array:
        return np.stack([env.observation for env in self._envs])


class _Remote:
    """A group of environments in another process, which ends with this process."""

    def __init__(self, env_id: str, options: str, seeds: Sequence[int]) -> None:
        # The process is spawned and not forked, because PyTorch's threads would stay locked in a fork.
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other_end = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(other_end, env_id, options, seeds), daemon=True)
        self._process.start()
        other_end.close()

    def request(self, what: str, *given: Any) -> None:
        with suppress(OSError):  # a dead process is reported by `answer`
            self._pipe.send((what, *given))

    def answer(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return Failed(
                "a process that runs environments died: put the body of your script under "
                "`if __name__ == '__main__':`, or free some memory"
            )

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, env_id: str, options: str, seeds: Sequence[int]) -> None:
    """Run the main loop of a `_Remote` process, until the other end of its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but its parent ends it
    with suppress(EOFError, OSError), ExitStack() as stack:
        group: _Local | None = None
        while True:
            what, *given = pipe.recv()
            try:
                if group is None:
                    group = _Local(env_id, options, seeds)
                    stack.callback(group.close)
                group.request(what, *given)
                result = group.answer()
            except SyntherError as error:
                result = error
            # The error is sent without its cause, which may not be picklable.
            pipe.send(DataError(str(result)) if isinstance(result, SyntherError) else result)


def _properties(env_id: str, options: str) -> tuple[Array, Array, Space, Space, int, int | None]:
    """Return action bounds, both spaces, the size of an observation, and the number of discrete actions (or None)."""
    with opened(env_id, **json.loads(options)) as env:
        warn_of_images(env, env_id)
        low, high = action_bounds(env, env_id)
        choices = number_of_choices(env)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise DataError(f"{env_id} takes actions within {low} and {high}: expected finite bounds")
        spaces = gym_spaces.action_space(env.action_space), gym_spaces.observation_space(env.observation_space)
        width = gym_spaces.width(env.observation_space)
    return low.astype(np.float32), high.astype(np.float32), *spaces, width, choices
