"""Real rows in two parts, so that every figure of synthetic rows has a figure of real ones beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from synther.assess.fidelity import at_most, check_columns
from synther.data.transitions import Transitions

HELD_OUT_SHARE = 0.2
MAX_HELD_OUT = 20_000
"""Of millions of rows so many tell as much, and the rest is then nearly all there is."""


@dataclass(frozen=True, eq=False)
class Split:
    """What is compared with what: `value = measure(reference, synthetic)` and `real = measure(reference, held_out)`.

    A single real row is both reference and held out: every figure of it is then as good as it gets.
    """

    real: Transitions
    """All real rows: with `held_out` apart from them, the reference; else both parts."""
    reference: Transitions
    held_out: Transitions
    synthetic: Transitions
    drawn: bool
    """Whether the held-out rows were drawn from the real ones."""

    @classmethod
    def of(
        cls, real: Transitions, synthetic: Transitions, held_out: Transitions | None, *, max_rows: int, seed: int
    ) -> Split:
        """At most `max_rows` of each, drawn with `seed`; rows come in random order, so that the first ones are a
        sample."""
        check_columns(real, synthetic)
        if held_out is not None:
            check_columns(real, held_out, "held-out")
        draw = np.random.default_rng(seed)
        real, synthetic = (at_most(rows, max_rows, seed) for rows in (real, synthetic))
        synthetic = synthetic[draw.permutation(len(synthetic))]
        order = draw.permutation(len(real))
        if held_out is not None:
            apart = at_most(held_out, MAX_HELD_OUT, seed)
            return cls(real, real[order], apart[draw.permutation(len(apart))], synthetic, drawn=False)
        count = min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(real)))
        kept = order[count:]
        return cls(real, real[kept], real[order[:count]] if count else real, synthetic, drawn=True)

    def shrink(self) -> float:
        """What the chance differences of reference and held-out rows are to be multiplied with, to be those of as many
        rows as are compared with the synthetic ones.

        The KS statistic and the difference of two correlations fall with the root of 1/n + 1/m when both samples are
        of the same distribution. Drawn parts are; rows that somebody held out may not be, and are left alone.
        """
        if not self.drawn:
            return 1.0
        here = 1 / len(self.real) + 1 / len(self.synthetic)
        return min(1.0, math.sqrt(here / (1 / len(self.reference) + 1 / len(self.held_out))))
