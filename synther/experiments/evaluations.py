"""Evaluations under way while training goes on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.agents.policy import Policy
from synther.collect.frozen import frozen
from synther.envs.evaluation import Evaluator, Pending
from synther.experiments.measurements import Measurement
from synther.experiments.record import Record

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
    def device(self) -> torch.device: ...
    def policy(self) -> Policy: ...
    def losses(self) -> dict[str, NDArray[np.float32]]: ...


class Evaluations:
    """Measurements are begun, and written down in that order as soon as they and those before them are done."""

    def __init__(self, evaluator: Evaluator | None, record: Record) -> None:
        self._evaluator, self._record = evaluator, record
        self._begun: deque[_Begun] = deque()

    def begin(self, agent: Learning, updates: int) -> None:
        """Measure the agent as it is now, after so many updates, as soon as few enough are under way."""
        compute.synchronize(agent.device)
        seconds = self._record.clock.seconds
        self.wait(MOST_UNDER_WAY - 1)
        # Numbered by the updates: the last evaluation is the same however many there were before.
        pending = None if self._evaluator is None else self._evaluator.start(frozen(agent.policy()), updates)
        self._begun.append(_Begun(updates, seconds, agent.losses(), pending))

    def collect(self) -> None:
        """Write down what is done."""
        while self._begun and self._begun[0].done():
            self._write_down()

    def wait(self, left: int) -> None:
        """Until at most so many are under way."""
        with self._record.clock.counting("waiting"):
            while len(self._begun) > left:
                self._write_down()

    def _write_down(self) -> None:
        measurement = self._begun[0].measurement()
        self._begun.popleft()
        self._record.add(measurement)
