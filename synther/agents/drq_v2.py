"""The heads of DrQ-v2 (Yarats et al. 2022). They are DrQ+BC without imitation: the policy only maximises the value.

They learn from features. `PixelDrQv2` (`pixels/drq_bc.py`) trains the encoder too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from synther.agents.drq_bc import DrQBC, DrQBCConfig
from synther.agents.rows import Batch


@dataclass(frozen=True)
class DrQv2Config(DrQBCConfig):
    """Options of DrQ-v2."""

    learning_rate: float = 1e-4
    """Learning rate of Adam."""
    stddev_updates: int = 250_000
    """Number of updates over which the noise falls. Default: DrQ-v2's schedule for tasks of medium difficulty, 500,000
    decisions with an update at every second one."""
    alpha: float = field(default=0.0, init=False)  # no imitation
    features: Literal["both", "shared"] = field(default="both", init=False)


def value_loss(value: Tensor) -> Tensor:
    """Return the mean of -Q per member (S,), from values (S, B)."""
    return -value.mean(1)


class DrQv2(DrQBC):
    """The heads of DrQ-v2."""

    config_class = DrQv2Config

    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        return value_loss(value)
