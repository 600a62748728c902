"""DrQ-v2 (Yarats et al. 2022): DrQ+BC without the imitation, whose policy follows the critics alone. Here its heads.

They learn from features, as those of DrQ+BC do; `pixels/drq_v2.py` learns the features too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from synther.agents.drq_bc import DrQBC, DrQBCConfig
from synther.agents.rows import Batch


@dataclass(frozen=True)
class DrQv2Config(DrQBCConfig):
    learning_rate: float = 1e-4
    stddev_updates: int = 250_000
    """DrQ-v2's for tasks of medium difficulty: 500,000 decisions, with an update at every second one."""
    alpha: float = field(default=0.0, init=False)  # nothing is imitated
    features: Literal["both", "shared"] = field(default="both", init=False)


def value_loss(value: Tensor) -> Tensor:
    """-Q, on average, from (S, B). (S,)"""
    return -value.mean(1)


class DrQv2(DrQBC):
    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        return value_loss(value)
