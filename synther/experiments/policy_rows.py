"""Synthetic rows with the actions of agents that are trained first: policy-guided diffusion (Jackson et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther import compute
from synther.agents.policy import load_policy
from synther.data.transitions import Transitions
from synther.experiments.loop import CHECKPOINT
from synther.experiments.offline import train_to
from synther.experiments.sources import Generated, TrainingData
from synther.experiments.specs import OfflineRun
from synther.folder import key_of
from synther.guides import policy_guide
from synther.locks import owned
from synther.progress import Progress

FIRST_SEED = 10_000
"""Of the agents that are trained first, so that others do not begin with the same weights."""


@dataclass(frozen=True)
class PolicyRows:
    """Rows of a diffusion model, moved towards the actions of `agents`, which take turns.

    NOTE[paper]: Jackson et al. generate rows again every 10,000 updates, for the agent as it is then. Here the agents
    are trained to their end, and others then learn from the rows. The agents lie in the store of the generators. All
    sources with the same agents share them.
    """

    source: Generated
    agents: OfflineRun
    """The training of the agents."""
    learned: TrainingData
    """What they learn from."""
    strength: float
    std: float

    def check(self, real: Transitions) -> None:
        self.source.check(real)

    def description(self) -> dict[str, Any]:
        own = {"strength": self.strength, "std": self.std, "agents": self._described()}
        return {**self.source.description(), "policy": own}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        if self.strength == 0:  # then no agents are needed
            return self.source.rows(file, progress)
        folder = self.source.store / f"agents-{key_of(self._described())}"
        with owned(folder.with_suffix(".lock"), patience=math.inf):
            train_to(self.agents, self.learned, folder, progress=progress)
        policy = load_policy(folder / CHECKPOINT, compute.pick_device(self.agents.device))
        return self.source.rows(file, progress, policy_guide(policy, self.strength, std=self.std))

    def _described(self) -> dict[str, Any]:
        """What the agents depend on."""
        run = self.agents
        names = ("algorithm", "updates", "seeds", "seed", "evaluate_every", "precision", "n_step")
        own = {name: getattr(run, name) for name in names}
        device = compute.pick_device(run.device).type
        return {**own, "agent": run.config.described(), "device": device, **self.learned.description()}
