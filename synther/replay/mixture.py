"""Draw batches with an exact fraction of synthetic rows."""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from synther.errors import ConfigError
from synther.replay.ring import Ring


class Mixture:
    """Mixes batches so that round(ratio * T) of the first T rows of all batches are synthetic, with halves rounded up.

    Each batch has ratio * batch size synthetic rows, rounded up or down. The next batches correct rounding errors, so
    the fraction converges to the ratio without randomness.
    """

    _ratio: float

    def __init__(self, ratio: float, *, shuffled: bool = True) -> None:
        self.ratio, self.shuffled = ratio, bool(shuffled)
        self.mixed = 0
        """Number of rows in all batches that were drawn since there are synthetic rows."""

    @property
    def ratio(self) -> float:
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        if not isinstance(ratio, Real) or not 0 <= ratio <= 1:
            raise ConfigError(f"ratio, the synthetic fraction of a batch, must lie in [0, 1], got {ratio!r}")
        self._ratio = float(ratio)

    def split(self, batch: int) -> tuple[int, int]:
        """Return the numbers of real and synthetic rows in the next batch, and count the batch."""
        before = self._due(self.mixed)
        self.mixed += int(batch)  # a NumPy integer would overflow
        synthetic = self._due(self.mixed) - before
        return batch - synthetic, synthetic

    def _due(self, rows: int) -> int:
        """Return the number of synthetic rows among the first `rows` rows.

        It is computed in integers, because floats may round the wrong way.
        """
        numerator, denominator = self.ratio.as_integer_ratio()
        return (2 * numerator * rows + denominator) // (2 * denominator)

    def draw(
        self,
        real: Ring,
        synthetic: Ring | None,
        batch: int,
        generator: torch.Generator,
        without: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return drawn rows (batch, width), and flags (batch,) that are true for synthetic rows.

        All rows are real while there are no synthetic rows. If the batch is not shuffled, real rows come first.
        `without` marks real rows that are not drawn.
        """
        if synthetic is None or not len(synthetic):
            return real.sample(batch, generator, without), torch.zeros(batch, dtype=torch.bool, device=real.device)
        counts = self.split(batch)
        rings = ((real, without), (synthetic, None))
        parts = [ring.sample(n, generator, excluded) for (ring, excluded), n in zip(rings, counts, strict=True) if n]
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        marks = torch.arange(batch, device=real.device) >= counts[0]
        if not self.shuffled:
            return rows, marks
        order = torch.randperm(batch, generator=generator, device=real.device)
        return rows[order], marks[order]
