"""Evaluations under way while training goes on, and the log that they end in."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.agents.policy import Policy
from synther.envs.evaluation import Evaluator, Pending
from synther.errors import SyntherError
from synther.experiments.frozen import frozen
from synther.experiments.measurements import Log, Measurement, Result
from synther.experiments.tracking import Tracking

log = logging.getLogger(__name__)

MOST_UNDER_WAY = 4
"""Evaluations. Each holds a copy of all policies; more would only hide longer that the players are too slow."""


@dataclass(frozen=True)
class _Begun:
    """A measurement whose episodes are being played, unless nobody evaluates."""

    updates: int
    seconds: float
    losses: dict[str, NDArray[Any]]
    evaluation: Pending | None

    def done(self) -> bool:
        return self.evaluation is None or self.evaluation.done()

    def measurement(self) -> Measurement:
        """Wait for its episodes."""
        evaluation = None if self.evaluation is None else self.evaluation.result()
        return Measurement.of(self.updates, self.seconds, self.losses, evaluation)


class Learning(Protocol):
    """Agents in training, offline or online."""

    @property
    def updates(self) -> int: ...
    def policy(self) -> Policy: ...
    def losses(self) -> dict[str, NDArray[np.float32]]: ...


class Evaluations:
    """Measurements are begun, and written down in that order as soon as they and those before them are done.

    Members are the `seeds` of the first arm, then those of the next. One that has diverged is told once, and the others
    go on; when all have, there is nothing to go on for.
    """

    def __init__(
        self, evaluator: Evaluator | None, written: Log, arms: Sequence[str], seeds: Sequence[int], tracking: Tracking
    ) -> None:
        self.written, self.latest = written, ""
        self._evaluator, self._tracking, self._arms = evaluator, tracking, arms
        self._names = [f"seed {seed} of arm {arm!r}" for arm in arms for seed in seeds]
        self._lost: set[str] = set()
        self._begun: deque[_Begun] = deque()
        for measurement in written.measurements:
            self._tell(measurement)

    def begin(self, agent: Learning, number: int, seconds: float) -> None:
        """Measure the agent as it is now, after so many seconds, and return at once."""
        pending = None if self._evaluator is None else self._evaluator.start(frozen(agent.policy()), number)
        self._begun.append(_Begun(agent.updates, seconds, agent.losses(), pending))

    def collect(self) -> None:
        """Write down what is done."""
        while self._begun and self._begun[0].done():
            self._write_down()

    def wait(self, left: int) -> None:
        """Until at most so many are under way."""
        while len(self._begun) > left:
            self._write_down()

    def _write_down(self) -> None:
        measurement = self._begun[0].measurement()
        self._begun.popleft()
        self.written.append(measurement)
        self._tell(measurement)

    def _tell(self, measurement: Measurement) -> None:
        """Everybody who wants to know."""
        self._tracking.write(measurement)
        self.latest = _shown(Result.of([measurement], self._arms), self._arms)
        lost = [name for name, gone in zip(self._names, measurement.diverged, strict=True) if gone]
        for name in lost:
            if name not in self._lost:
                log.warning(
                    "%s has diverged after %d updates: no mean counts it from here on", name, measurement.updates
                )
        self._lost.update(lost)
        if len(lost) == len(self._names):
            raise SyntherError(
                f"all {len(lost)} members have diverged after {measurement.updates:,} updates: their losses or actions "
                "are no finite numbers; lower --agent.learning-rate, or look for absurd values with `synther inspect`"
            )


def _shown(result: Result, arms: Sequence[str]) -> str:
    """The score of each arm, or return, for the display."""
    stands = {arm: result.final(arm) for arm in arms}
    spreads = {arm: s.spread_of_scores or s.spread_of_returns for arm, s in stands.items() if s is not None}
    return "".join(f", {arm} {spread.mean:.1f}" for arm, spread in spreads.items() if spread is not None)
