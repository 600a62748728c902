"""DrQ-v2 (Yarats et al. 2022) on frames: as `drq_bc.py`, but for the policy's loss, which is the critics' alone."""

from __future__ import annotations

from torch import Tensor

from synther.agents.drq_v2 import value_loss
from synther.agents.rows import Batch
from synther.pixels.drq_bc import PixelDrQBC


class PixelDrQv2(PixelDrQBC):
    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        return value_loss(value)
