"""Evaluate policies: worker processes play whole episodes and return the true returns, while the caller continues.

Workers receive a frozen copy of the policy and then play without further messages. So training continues on the GPU
in the meantime, and workers never wait for it. A 256x2 network takes a tenth of the time of a MuJoCo step.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.envs.episodes import EVALUATIONS, SIDE_BY_SIDE, Key, action_bounds, held, play
from synther.envs.making import opened
from synther.envs.policies import Policy
from synther.envs.scores import Reference, reference
from synther.envs.workers import Workers, answer
from synther.errors import ConfigError, DataError
from synther.progress import Phase

_PATIENCE = 0.2
"""Seconds between two updates of the display."""

Played = list[tuple[float, int]] | None
"""Return and length of each of some episodes, or None if the policy has diverged."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of an evaluation, for each member's policy and each of its episodes."""

    number: int
    """Number of the evaluation. Other numbers give other initial states."""
    returns: NDArray[np.float64]
    """(S, episodes): undiscounted returns; NaN for a member with a diverged policy (actions that are not finite)"""
    lengths: NDArray[np.int64]
    """(S, episodes): numbers of steps; 0 for a member with a diverged policy"""
    scores: NDArray[np.float64] | None
    """(S, episodes): D4RL's normalised scores, if there is a score for the environment"""


class Evaluator:
    """Plays `episodes` episodes with the policy of each member. Its worker processes stay open between evaluations.

    `members` are the seeds of the members. An episode depends only on its policy, its member's seed, its index and the
    number of the evaluation. It does not depend on the workers or the other members. Members with the same seed, for
    example the arms of a comparison, get the same initial states.

    `workers` is the number of processes (None: one less than the number of cores, at least one). `options` are passed
    to `gymnasium.make`. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        env_id: str,
        members: Sequence[int],
        *,
        episodes: int = 10,
        workers: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not members or min(members) < 0:
            raise ConfigError(f"members must be at least one seed, each 0 or more, got {list(members)}")
        if episodes < 1:
            raise ConfigError(f"episodes must be at least 1, got {episodes}")
        self.env_id, self.members, self.episodes = env_id, tuple(members), episodes
        self._options = json.dumps(dict(options or {}))
        self._reference = reference(env_id, json.loads(self._options))
        with opened(env_id, **json.loads(self._options)) as env:  # a wrong id raises an error immediately
            action_bounds(env, env_id)
        self._workers = Workers(max(1, cores() - 1) if workers is None else workers)

    def start(self, policies: Sequence[Policy], number: int = 0) -> Pending:
        """Start evaluation `number` (0 or more) with one policy per member, and return immediately.

        Several evaluations can be pending at the same time. Workers play them in the order in which they were started.
        """
        if len(policies) != len(self.members):
            raise ConfigError(f"expected a policy for each of the {len(self.members)} members, got {len(policies)}")
        if number < 0:
            raise ConfigError(f"the number of an evaluation must be 0 or more, got {number}")
        work = []
        for seed, policy in zip(self.members, policies, strict=True):
            frozen = _frozen(policy)
            keys = [(EVALUATIONS, seed, number, episode) for episode in range(self.episodes)]
            groups = [keys[first : first + SIDE_BY_SIDE] for first in range(0, len(keys), SIDE_BY_SIDE)]
            work.append([self._workers.submit(_played, self.env_id, self._options, frozen, some) for some in groups])
        return Pending(self._reference, number, self.members, self.episodes, work)

    def evaluate(self, policies: Sequence[Policy], number: int = 0, phase: Phase | None = None) -> Evaluation:
        """Run an evaluation and wait for its result. `phase` advances as episodes finish."""
        pending, total, shown = self.start(policies, number), len(self.members) * self.episodes, 0
        while phase is not None and shown < total:
            finished = round(pending.wait(_PATIENCE) * total)
            phase.advance(finished - shown)
            shown = finished
        return pending.result()

    def close(self) -> None:
        """End the worker processes. Evaluations that are not finished are lost."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _frozen(policy: Policy) -> bytes:
    """Return a copy of the policy for other processes, because the caller may continue to train it."""
    try:
        return pickle.dumps(policy, protocol=5)
    except (AttributeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"the policy cannot be sent to the processes that play episodes ({error}): define the classes of its "
            "networks at the top level of a module, not inside a function, or train without evaluation"
        ) from None


class Pending:
    """A running evaluation, as returned by `Evaluator.start`."""

    def __init__(
        self,
        known: Reference | None,
        number: int,
        members: Sequence[int],
        episodes: int,
        work: list[list[Future[Played]]],
    ) -> None:
        self.number = number
        self._reference, self._members, self._episodes, self._work = known, members, episodes, work

    def done(self) -> bool:
        """Return whether all episodes are finished."""
        return all(piece.done() for pieces in self._work for piece in pieces)

    def wait(self, seconds: float) -> float:
        """Wait up to `seconds` for all episodes, and return the fraction of finished jobs."""
        pieces = [piece for pieces in self._work for piece in pieces]
        return len(wait(pieces, seconds).done) / len(pieces)

    def result(self) -> Evaluation:
        """Wait for all episodes and return the result."""
        size = len(self._members), self._episodes
        returns, lengths = np.full(size, np.nan), np.zeros(size, np.int64)
        for member, (seed, pieces) in enumerate(zip(self._members, self._work, strict=True)):
            try:
                played = [answer(piece) for piece in pieces]
            except DataError as error:
                for piece in (piece for others in self._work for piece in others):
                    piece.cancel()
                raise DataError(f"evaluation {self.number}, member {member} (seed {seed}): {error}") from error
            if None not in played:
                episodes = [episode for some in played for episode in some or ()]
                returns[member], lengths[member] = zip(*episodes, strict=True)
        known = self._reference
        return Evaluation(self.number, returns, lengths, None if known is None else known.score(returns))


class _Diverged(Exception):
    """Raised if a policy returns an action that is not finite."""


@dataclass(frozen=True)
class _Watched:
    """A policy that raises `_Diverged` for actions that are not finite, to distinguish them from other errors."""

    policy: Policy

    def act(self, observation: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            actions = self.policy.act(observation, rng)
        if not np.isfinite(actions).all():
            raise _Diverged
        return actions


def _played(env_id: str, options: str, frozen: bytes, keys: Sequence[Key]) -> Played:
    """Play one episode per key. Runs in a worker."""
    rewards: list[list[float]] = [[] for _ in keys]
    try:
        for episode, step in play(held(env_id, options, len(keys)), env_id, _Watched(pickle.loads(frozen)), keys):
            rewards[episode].append(step.reward)
    except _Diverged:
        return None
    return [(math.fsum(some), len(some)) for some in rewards]
