"""Batches with an exact fraction of synthetic rows."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.errors import ConfigError
from synther.replay.ring import Ring


class Mixture:
    """Of the first T rows of all batches, round(ratio T) are synthetic, halves rounded up.

    So each batch has ratio * batch size synthetic rows, rounded up or down. Rounding errors of one batch are made up in
    the next, so that the fraction converges to the ratio without randomness.
    """

    def __init__(self, ratio: float, *, shuffled: bool = True) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"ratio, the synthetic fraction of a batch, must lie in [0, 1], got {ratio}")
        self.ratio, self.shuffled = float(ratio), bool(shuffled)
        self.mixed = 0
        """Rows of all batches since there are synthetic rows."""

    def split(self, batch: int) -> tuple[int, int]:
        """Numbers of real and synthetic rows in the next batch."""
        before = self._due(self.mixed)
        self.mixed += int(batch)  # a NumPy integer would overflow
        synthetic = self._due(self.mixed) - before
        return batch - synthetic, synthetic

    def _due(self, rows: int) -> int:
        """Synthetic rows among the first `rows` rows. Computed in integers, because floats may round the wrong way."""
        above, below = self.ratio.as_integer_ratio()
        return (2 * above * rows + below) // (2 * below)

    def draw(
        self,
        real: Ring,
        synthetic: Ring | None,
        batch: int,
        generator: torch.Generator,
        without: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw rows (batch, width), and flags (batch,) of the synthetic ones.

        All rows are real while there are no synthetic rows. Real rows come first unless the batch is shuffled.
        `without` marks real rows that are not drawn.
        """
        if synthetic is None or not len(synthetic):
            return real.sample(batch, generator, without), torch.zeros(batch, dtype=torch.bool, device=real.device)
        counts = self.split(batch)
        kept_back = ((real, without), (synthetic, None))
        parts = [ring.sample(n, generator, w) for (ring, w), n in zip(kept_back, counts, strict=True) if n]
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        marks = torch.arange(batch, device=real.device) >= counts[0]
        if not self.shuffled:
            return rows, marks
        order = torch.randperm(batch, generator=generator, device=real.device)
        return rows[order], marks[order]
