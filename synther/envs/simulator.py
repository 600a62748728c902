"""The true outcome of a row: set the simulator to the recorded state, take the recorded action, and read the result.

This measures how far generated next observations and rewards are from the real dynamics.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.cores import cores
from synther.data.transitions import Transitions
from synther.envs.tasks import SUPPORTED, Task, describe, opened_task, require, supports
from synther.envs.workers import Workers, answer
from synther.errors import DataError, SyntherError
from synther.progress import Progress, resolve

__all__ = ["CHUNK_ROWS", "SUPPORTED", "Judge", "describe", "judge_of", "simulate", "supports"]

Array = NDArray[Any]
Answer = tuple[Array, Array, Array]
"""Next observations, rewards, terminals."""

CHUNK_ROWS = 2_000
"""Rows per piece of work, about half a second: short enough for a progress bar, long enough for another process."""

WORKER_ROWS = 10_000
"""Rows per worker process below which starting the process would take longer than the work."""


def simulate(
    env_id: str,
    observations: ArrayLike,
    actions: ArrayLike,
    *,
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Answer:
    """The next observations (N, O), rewards (N,), both float64, and terminals (N,) that `env_id` itself gives.

    `observations` are (N, O), `actions` (N, A) or (N,) integers; `env_id` is one of `SUPPORTED`. The result equals the
    environment's own up to rounding, and up to 1e-4 at some contacts and joint limits, where MuJoCo's solver would have
    started from its last solution. It is less exact if the observation does not contain the whole state:

    - Hopper, Walker2d and InvertedDoublePendulum clip observed velocities to [-10, 10], so the state of a row with a
      clipped velocity is unknown.
    - The rewards of Ant and Humanoid depend on a slightly earlier position of the body: with random actions, the error
      is at most 0.1 for Ant and 0.01 for Humanoid.
    - The solver of Humanoid and HumanoidStandup stops before it converges: the relative error of the next observation
      is at most 0.001.
    - Gymnasium's Reacher observes sine and cosine of its elbow. An elbow that was forced beyond its limit by half a
      turn is taken to be bent the other way.

    `options` go to `gymnasium.make`; they must not change what is observed. The result is NaN for a row that makes the
    simulation unstable. The work is done by `processes` worker processes (None: as many as are worthwhile, at most one
    per core; 1: in this process). The result does not depend on their number.
    """
    require(env_id)
    if processes is not None and processes < 1:
        raise DataError(f"processes must be at least 1, got {processes}")
    observations, actions = np.asarray(observations), np.asarray(actions)
    answers = []
    made = json.dumps(dict(options or {}))
    with opened_task(env_id, options) as task:
        _check(env_id, task, observations, actions)
        starts = range(0, len(observations), CHUNK_ROWS)
        worth = len(starts) if processes else len(observations) // WORKER_ROWS
        workers = min(processes or cores(), worth)
        chunks = [(observations[at : at + CHUNK_ROWS], actions[at : at + CHUNK_ROWS]) for at in starts]
        with resolve(progress).phase(f"simulate {env_id}", len(observations)) as phase:
            here = (_follow(task, *one) for one in chunks)
            for found in _spread(env_id, made, chunks, workers) if workers > 1 else here:
                answers.append(found)
                phase.advance(len(found[1]))
    following, rewards, terminals = zip(*answers, strict=True)
    return np.concatenate(following), np.concatenate(rewards), np.concatenate(terminals)


@dataclass(frozen=True)
class Judge:
    """An environment that computes the true outcome of a state and an action."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)
    """For `gymnasium.make`."""

    def __call__(self, observations: Array, actions: Array, *, processes: int | None = None) -> Answer:
        return simulate(self.task, observations, actions, options=self.options, processes=processes)

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return describe(self.task) + (f" with {listed}" if listed else "")


def judge_of(rows: Transitions, task: str, *, named: bool) -> Judge | SyntherError:
    """The environment `task` as a judge of these rows, or the error that prevents it.

    If the user has `named` it, the error is raised. Otherwise the rows name it, and it gets their options.
    """
    judge = Judge(task, {} if named else rows.env_options or {})
    try:
        if "discount" in rows.extra:
            raise DataError(f"{task} simulates one step, and these are n-step rows (extra column discount)")
        judge(rows.observation[:1], rows.action[:1], processes=1)
    except SyntherError as error:
        if named:
            raise
        return error
    return judge


def _check(env_id: str, task: Task, observations: Array, actions: Array) -> None:
    if observations.ndim != 2 or observations.shape[1] != task.columns or not len(observations):
        raise DataError(f"{env_id}: expected observations of shape (rows, {task.columns}), got {observations.shape}")
    expected = (len(observations), *task.action_shape)
    if actions.shape != expected:
        raise DataError(f"{env_id}: expected actions of shape {expected}, got {actions.shape}")
    if not np.isfinite(observations).all() or not np.isfinite(actions).all():
        raise DataError(f"{env_id}: expected finite observations and actions, got NaN or infinity")


def _spread(env_id: str, options: str, chunks: list[tuple[Array, Array]], workers: int) -> Iterator[Answer]:
    with Workers(workers) as pool:
        for future in [pool.submit(_follow_held, env_id, options, *chunk) for chunk in chunks]:
            yield answer(future)


def _follow_held(env_id: str, options: str, observations: Array, actions: Array) -> Answer:
    return _follow(_held(env_id, options), observations, actions)


@cache
def _held(env_id: str, options: str) -> Task:
    """The task, opened once and for as long as this worker process lives."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(opened_task(env_id, json.loads(options)))


def _follow(task: Task, observations: Array, actions: Array) -> Answer:
    following = np.full(observations.shape, np.nan)
    rewards = np.full(len(observations), np.nan)
    terminals = np.zeros(len(observations), bool)
    for row, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
        found = task.step(action) if task.place(observation, action) else None
        if found is not None:
            following[row], rewards[row], terminals[row] = found
    return following, rewards, terminals
