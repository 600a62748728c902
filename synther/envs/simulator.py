"""Compute the true outcome of a row: set the simulator to the recorded state and take the recorded action.

With this, `synther` measures how far generated next observations and rewards are from the real dynamics.
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
from synther.envs.workers import Workers, in_order
from synther.errors import DataError, SyntherError
from synther.progress import Progress, resolve

__all__ = ["CHUNK_ROWS", "SUPPORTED", "Judge", "describe", "judge_of", "simulate", "supports"]

Array = NDArray[Any]
Answer = tuple[Array, Array, Array]
"""Next observations, rewards, terminals."""

CHUNK_ROWS = 2_000
"""Rows per job, about half a second of work: short enough for a progress bar, long enough for a worker process."""

WORKER_ROWS = 10_000
"""Minimum number of rows per worker process. With fewer rows, starting the process takes longer than the work."""


def simulate(
    env_id: str,
    observations: ArrayLike,
    actions: ArrayLike,
    *,
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Answer:
    """Return the next observations (N, O), rewards (N,) and terminals (N,) that the environment itself computes.

    `observations` are (N, O), `actions` are (N, A), or integers (N,). `env_id` is one of `SUPPORTED`. Next observations
    and rewards are float64. They equal those of the environment up to rounding, and up to 1e-4 at some contacts and
    joint limits, where MuJoCo's solver would have started from its last solution. They are less exact in these tasks:

    - Hopper, Walker2d and InvertedDoublePendulum clip observed velocities to [-10, 10], so the state of a row with a
      clipped velocity is unknown.
    - The rewards of Ant and Humanoid depend on a slightly earlier position of the body: with random actions, the error
      is at most 0.1 for Ant and 0.01 for Humanoid.
    - The solver of Humanoid and HumanoidStandup stops before it converges: the relative error of the next observation
      is at most 0.001.
    - Gymnasium's Reacher observes sine and cosine of its elbow. If the elbow was forced beyond its limit (3 rad) and
      past half a turn, it is placed as if it were bent the other way.

    `options` are passed to `gymnasium.make`; they must not change what is observed. The result is NaN for a row that
    makes the simulation unstable. `processes` is the number of worker processes (None: as many as are worthwhile, at
    most one per core; 1: work in this process). The result does not depend on it.
    """
    require(env_id)
    if processes is not None and processes < 1:
        raise DataError(f"processes must be at least 1, got {processes}")
    observations, actions = np.asarray(observations), np.asarray(actions)
    answers = []
    options_json = json.dumps(dict(options or {}))
    with opened_task(env_id, options) as task:
        _check(env_id, task, observations, actions)
        starts = range(0, len(observations), CHUNK_ROWS)
        worth = len(starts) if processes else len(observations) // WORKER_ROWS
        workers = min(processes or cores(), worth)
        chunks = [(observations[at : at + CHUNK_ROWS], actions[at : at + CHUNK_ROWS]) for at in starts]
        with resolve(progress).phase(f"simulate {env_id}", len(observations)) as phase:
            in_this_process = (_simulate(task, *one) for one in chunks)
            for outcome in _in_workers(env_id, options_json, chunks, workers) if workers > 1 else in_this_process:
                answers.append(outcome)
                phase.advance(len(outcome[1]))
    following, rewards, terminals = zip(*answers, strict=True)
    return np.concatenate(following), np.concatenate(rewards), np.concatenate(terminals)


@dataclass(frozen=True)
class Judge:
    """An environment that computes the true outcomes of states and actions."""

    task: str
    """Id of the environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of `gymnasium.make`."""

    def __call__(self, observations: Array, actions: Array, *, processes: int | None = None) -> Answer:
        """Return next observations, rewards and terminals, see `simulate`."""
        return simulate(self.task, observations, actions, options=self.options, processes=processes)

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return describe(self.task) + (f" with {listed}" if listed else "")


def judge_of(rows: Transitions, task: str, *, named: bool) -> Judge | SyntherError:
    """Return the environment `task` as a judge of `rows`, or the error if it cannot judge them.

    `named` says that the user chose the task. An error is then raised instead of returned. Otherwise the task was read
    from the rows, and the judge uses their environment options.
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
    """Raise an error if the shapes do not fit the task or a value is not finite."""
    if observations.ndim != 2 or observations.shape[1] != task.columns or not len(observations):
        raise DataError(f"{env_id}: expected observations of shape (rows, {task.columns}), got {observations.shape}")
    expected = (len(observations), *task.action_shape)
    if actions.shape != expected:
        raise DataError(f"{env_id}: expected actions of shape {expected}, got {actions.shape}")
    if not np.isfinite(observations).all() or not np.isfinite(actions).all():
        raise DataError(f"{env_id}: expected finite observations and actions, got NaN or infinity")


def _in_workers(env_id: str, options: str, chunks: list[tuple[Array, Array]], workers: int) -> Iterator[Answer]:
    """Simulate all chunks in worker processes, and yield the results in order."""
    with Workers(workers) as pool:
        yield from in_order(pool, _simulate_in_worker, [(env_id, options, *chunk) for chunk in chunks])


def _simulate_in_worker(env_id: str, options: str, observations: Array, actions: Array) -> Answer:
    return _simulate(_held(env_id, options), observations, actions)


@cache
def _held(env_id: str, options: str) -> Task:
    """Open the task on the first call. It stays open until this worker process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(opened_task(env_id, json.loads(options)))


def _simulate(task: Task, observations: Array, actions: Array) -> Answer:
    """Simulate row by row. The outcome of a row without a valid state, or with an unstable simulation, is NaN."""
    following = np.full(observations.shape, np.nan)
    rewards = np.full(len(observations), np.nan)
    terminals = np.zeros(len(observations), bool)
    for row, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
        outcome = task.step(action) if task.place(observation, action) else None
        if outcome is not None:
            following[row], rewards[row], terminals[row] = outcome
    return following, rewards, terminals
