"""Compare the terminal flags of rows with the right flags, which a simulator or a `TerminalJudge` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners
from synther.assess.features import Features
from synther.assess.learners import Networks
from synther.data import termination
from synther.data.transitions import Transitions

Array = NDArray[Any]


@dataclass(frozen=True)
class Agreement:
    """Accuracy, precision and recall of terminal flags. Range 0 to 1; higher is better."""

    correct: float
    """Share of the rows with the right flag."""
    precision: float | None
    """Of the rows flagged terminal, the share that is terminal. None if no row is flagged."""
    recall: float | None
    """Of the terminal rows, the share that is flagged. None if no row is terminal."""


def agreement(flagged: Array, truth: Array) -> Agreement:
    """Compare flags with the right flags, both booleans (n,)."""
    both, claimed, true = (int(np.count_nonzero(flags)) for flags in (flagged & truth, flagged, truth))
    return Agreement(
        correct=float(np.mean(flagged == truth)),
        precision=both / claimed if claimed else None,
        recall=both / true if true else None,
    )


class TerminalJudge:
    """Decides whether rows are terminal without looking at their flags. It has learned this from real rows.

    If a tree of thresholds explains the real terminals, as for most environments, the tree decides. Otherwise a network
    decides from s, a and s'. Half of its training rows are terminals, because terminals are rare. Its threshold is
    chosen such that it flags the real rows at their real rate. If all real rows have the same flag, this is the answer.
    """

    def __init__(self, features: Features, real: Transitions, *, seed: int, device: torch.device | str = "cpu") -> None:
        self.features = features
        rate = float(real.terminal.mean())
        self.networks: Networks | None = None
        self.threshold = 0.0
        self.always = rate == 1.0
        self.tree = termination.learn(termination.unpaid(real), seed)
        if self.tree is None and 0.0 < rate < 1.0:
            pools = [np.flatnonzero(~real.terminal), np.flatnonzero(real.terminal)]
            target = real.terminal[:, None].astype(np.float32)
            inputs = self._inputs(real)
            self.networks = learners.fit(inputs, target, [pools], learners.flags, seed=seed, device=device)
            self.threshold = float(np.quantile(self._logits(self.networks, inputs), 1.0 - rate))

    def __call__(self, rows: Transitions) -> Array:
        """Return whether each row should be terminal. (n,) booleans"""
        if self.tree is not None:
            return self.tree.decide(rows)
        if self.networks is None:
            return np.full(len(rows), self.always)
        flags: Array = self._logits(self.networks, self._inputs(rows)) > self.threshold
        return flags

    @staticmethod
    def _logits(networks: Networks, inputs: Array) -> Array:
        logits: Array = networks.predict(inputs)[0, :, 0]
        return logits

    def _inputs(self, rows: Transitions) -> Array:
        return np.hstack([self.features.decision(rows), self.features.next_state(rows)])
