"""Batches that are partly real, partly synthetic, in exact numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.errors import ConfigError
from synther.replay.ring import Ring


class Mixture:
    """After T rows in all, round(ratio T) of them were synthetic, halves rounded up.

    So a batch has ratio times its size of them, rounded up or down where that is no whole number, and what is rounded
    away in one batch is made up for in the next: over time the share is the ratio itself, without a draw.
    """

    def __init__(self, ratio: float, *, shuffled: bool = True) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in [0, 1], got {ratio}")
        self.ratio, self.shuffled = float(ratio), bool(shuffled)
        self.mixed = 0
        """Rows of all batches so far that could have been synthetic."""

    def split(self, batch: int) -> tuple[int, int]:
        """How many rows of the next batch are real, and how many synthetic."""
        before = self._due(self.mixed)
        self.mixed += int(batch)  # of NumPy's it would overflow
        synthetic = self._due(self.mixed) - before
        return batch - synthetic, synthetic

    def _due(self, rows: int) -> int:
        """Synthetic rows among so many: in integers, since a product of floats may round to the other side."""
        above, below = self.ratio.as_integer_ratio()
        return (2 * above * rows + below) // (2 * below)

    def draw(self, real: Ring, synthetic: Ring | None, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows (batch, width), and which of them are synthetic (batch,): none while there are no synthetic rows.

        Real rows come first, unless they are shuffled.
        """
        if synthetic is None or not len(synthetic):
            return real.sample(batch, generator), torch.zeros(batch, dtype=torch.bool, device=real.device)
        counts = self.split(batch)
        parts = [ring.sample(n, generator) for ring, n in zip((real, synthetic), counts, strict=True) if n]
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        marks = torch.arange(batch, device=real.device) >= counts[0]
        if not self.shuffled:
            return rows, marks
        order = torch.randperm(batch, generator=generator, device=real.device)
        return rows[order], marks[order]
