"""Whether episodes end where they should: the terminal flags of rows against those of a judge."""

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
    """Each from 0 to 1; higher is better. None where there is nothing to count."""

    correct: float
    """Share of rows whose flag is the judge's."""
    precision: float | None
    """Share of the rows flagged terminal that are."""
    recall: float | None
    """Share of the rows that are terminal that are flagged."""


def agreement(flagged: Array, truth: Array) -> Agreement:
    """Of two arrays of booleans (n,)."""
    both, claimed, true = (int(np.count_nonzero(flags)) for flags in (flagged & truth, flagged, truth))
    return Agreement(
        correct=float(np.mean(flagged == truth)),
        precision=both / claimed if claimed else None,
        recall=both / true if true else None,
    )


class TerminalJudge:
    """Tells from the rest of a row whether it is terminal, as learned from real rows.

    Where a tree of thresholds explains the real terminals, as it does for most environments, that decides. Otherwise a
    network does, from s, a and s'. Terminals are rare: half of what it learns from are terminals. It then calls
    terminal what it finds likeliest, as often as the rows it learned from are. Where all real rows have the same flag,
    so has its answer.
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
        """Its flag for each row, whatever the row's own flag is."""
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
