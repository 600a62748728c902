"""A vector of environments for online training: one environment per seed, in one process or in several.

A MuJoCo step takes 0.1 to 0.5 ms, a message to another process and back 0.3 ms (`docs/online.md`). So several
processes help with several environments, and never with a single one.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.data import gym_spaces
from synther.data.spaces import Space
from synther.envs.episodes import action_bounds, number_of_choices
from synther.envs.making import begun, opened, stepped
from synther.errors import ConfigError, DataError, Failed, SyntherError

Array = NDArray[np.float32]

_STREAM = 3
"""Random stream of these episodes. Evaluations and recorded data use other streams."""


_LARGEST = float(np.finfo(np.float32).max)

_PATIENCE = 5.0
"""Seconds that a process gets to exit by itself."""


class Stepped(NamedTuple):
    """Result of one step of some environments."""

    rows: Array
    """(S, width): observation, action, reward, terminal, next observation"""
    timeouts: NDArray[np.bool_]
    """(S,): the episode was truncated here, for example by a time limit, in a non-terminal state"""
    observations: Array
    """(S, O): the current observations; of environments whose episode ended, those after the reset"""


class VectorEnv:
    """One environment for each of `seeds`. Use it as a context manager, or close it.

    The initial state of an episode depends only on its seed and on the number of the step before which it starts. It
    does not depend on the other seeds or on `processes` (None: as many as are free and useful). `options` are passed to
    `gymnasium.make`.
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
        made = json.dumps(dict(options or {}))
        self.low, self.high, self.action_space, self.observation_space, self.observation_size, self.choices = _known(
            env_id, made
        )
        wanted = min(len(seeds), max(1, cores() - 1) if processes is None else processes)
        self._ends = np.cumsum([len(some) for some in np.array_split(np.arange(len(seeds)), wanted)])
        groups = [list(some) for some in np.split(np.array(seeds), self._ends[:-1])]
        self._stack = ExitStack()
        try:
            place = _Here if wanted == 1 else _There
            self._places: list[_Place] = [place(env_id, made, own) for own in groups]
            for one in self._places:
                self._stack.callback(one.close)
        except BaseException:
            self._stack.close()
            raise
        self.observations = np.zeros((len(seeds), self.observation_size), np.float32)
        """Current observations, (S, O)."""

    def reset(self, step: int) -> None:
        """Reset all environments, before step number `step`."""
        for place in self._places:
            place.ask("reset", step)
        self.observations = np.concatenate(self._answers())

    def step(self, actions: Array, number: int) -> Stepped:
        """Take one action per environment (S, A) in step `number`. Environments whose episode ends are reset."""
        for place, own in zip(self._places, np.split(actions, self._ends[:-1]), strict=True):
            place.ask("step", own, number)
        taken = Stepped(*(np.concatenate(part) for part in zip(*self._answers(), strict=True)))
        self.observations = taken.observations
        return taken

    def _answers(self) -> list[Any]:
        """Collect the answers of all places, then raise the first error among them."""
        found = [place.answer() for place in self._places]
        for one in found:
            if isinstance(one, SyntherError):
                raise one
        return found

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class _Env:
    """One environment."""

    def __init__(self, env: Any, env_id: str, seed: int) -> None:
        self.env, self.env_id, self.seed = env, env_id, seed
        self._size = gym_spaces.width(env.observation_space)
        self.here: Array = np.zeros(self._size, np.float32)

    def reset(self, step: int) -> None:
        start = int(np.random.SeedSequence((_STREAM, self.seed, step)).generate_state(1)[0])
        where = f"reset(seed={start}) before step {step}"
        raw = self._attempt(where, begun, self.env, seed=start)
        self.here = self._flat(raw, where)

    def step(self, action: Array, number: int) -> tuple[Array, bool]:
        """Return the row of this step and whether the episode was truncated (not terminated)."""
        where = f"step {number}"
        space = self.env.action_space
        taken = np.array(action, space.dtype) if space.shape else space.dtype.type(np.rint(action[0]))
        if taken.dtype == np.float64:  # a float32 bound may lie outside the float64 bounds
            taken = np.clip(taken, space.low, space.high)
        raw, reward, terminated, truncated = self._attempt(where, stepped, self.env, taken)
        if not abs(reward) <= _LARGEST:
            raise DataError(f"{self._who} returned the reward {reward} in {where}: expected a finite number of float32")
        following = self._flat(raw, where)
        row = np.concatenate([self.here, action, [reward, terminated], following], dtype=np.float32)
        self.here = following
        if terminated or truncated:
            self.reset(number + 1)
        return row, truncated and not terminated

    @property
    def _who(self) -> str:
        return f"{self.env_id} of seed {self.seed}"

    def _attempt(self, what: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except Exception as error:  # an environment can raise anything
            raise DataError(f"{self._who} failed in {what}: {type(error).__name__}: {error}") from error

    def _flat(self, observation: Any, where: str) -> Array:
        """The flat observation as float32."""
        found = self._attempt(where, gym_spaces.flat, self.env.observation_space, observation)
        with np.errstate(over="ignore"):  # checked below
            flat: Array = self._attempt(where, np.array, found, np.float32)
        if len(flat) != self._size:
            raise DataError(f"{self._who} returned {len(flat)} numbers in {where}: its space has {self._size}")
        if not np.isfinite(flat).all():
            column = int(np.argmin(np.isfinite(flat)))
            raise DataError(f"{self._who} returned {flat[column]} in observation column {column} in {where}")
        return flat


class _Place(Protocol):
    """A process that holds some of the environments."""

    def ask(self, what: str, *given: Any) -> None:
        """Start a `reset` or a `step`."""

    def answer(self) -> Any:
        """Return the result, which may be an error."""

    def close(self) -> None: ...


class _Here:
    """Environments in this process."""

    def __init__(self, env_id: str, options: str, seeds: Sequence[int]) -> None:
        self._stack = ExitStack()
        made = [self._stack.enter_context(opened(env_id, **json.loads(options))) for _ in seeds]
        self._envs = [_Env(env, env_id, int(seed)) for env, seed in zip(made, seeds, strict=True)]
        self._answer: Any = None

    def ask(self, what: str, *given: Any) -> None:
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
        return np.stack([env.here for env in self._envs])


class _There:
    """Environments in another process, which ends with this one."""

    def __init__(self, env_id: str, options: str, seeds: Sequence[int]) -> None:
        # Spawned, not forked: a fork would leave PyTorch's threads locked.
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, env_id, options, seeds), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, what: str, *given: Any) -> None:
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
    """Main loop of such a process, until the other end of its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; its parent ends it
    with suppress(EOFError, OSError), ExitStack() as stack:
        place: _Here | None = None
        while True:
            what, *given = pipe.recv()
            try:
                if place is None:
                    place = _Here(env_id, options, seeds)
                    stack.callback(place.close)
                place.ask(what, *given)
                found = place.answer()
            except SyntherError as error:
                found = error
            # Without its cause, which may not be picklable.
            pipe.send(DataError(str(found)) if isinstance(found, SyntherError) else found)


def _known(env_id: str, options: str) -> tuple[Array, Array, Space, Space, int, int | None]:
    """Action bounds, both spaces, the size of an observation, and the number of discrete actions."""
    with opened(env_id, **json.loads(options)) as env:
        low, high = action_bounds(env, env_id)
        choices = number_of_choices(env)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise DataError(f"{env_id} takes actions within {low} and {high}: expected finite bounds")
        spaces = gym_spaces.action_space(env.action_space), gym_spaces.observation_space(env.observation_space)
        width = gym_spaces.width(env.observation_space)
    return low.astype(np.float32), high.astype(np.float32), *spaces, width, choices
