"""The explicit augmentations that the paper compares with: real rows are drawn with replacement, and their observations
are changed at random.

`Augmentation` has the methods `fit` and `sample` of a `Synthesizer`, so it can be used in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from synther.data.checks import check_count, drawing_seed
from synther.data.transitions import Transitions
from synther.errors import ConfigError

Array = NDArray[Any]
Change = Callable[[Array, Array, np.random.Generator], tuple[Array, Array]]
"""A function of s, s' (N, O each) and a random generator that returns the changed s and s'."""


def additive(s: Array, next_s: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """Add noise from N(0, 0.1) to each value of s and s', drawn independently (Laskin et al. 2020)."""
    return s + draw.normal(0, 0.1, s.shape), next_s + draw.normal(0, 0.1, next_s.shape)


def multiplicative(s: Array, next_s: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """Multiply s and s' by one number per row from Unif(0.8, 1.2) (Laskin et al. 2020)."""
    factor = draw.uniform(0.8, 1.2, (len(s), 1))
    return s * factor, next_s * factor


def dynamics(s: Array, next_s: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """Multiply s' - s by one number per row from Unif(0.5, 1.5) (Ball et al. 2021)."""
    return s, s + draw.uniform(0.5, 1.5, (len(s), 1)) * (next_s - s)


AUGMENTATIONS: dict[str, Change] = {"additive": additive, "multiplicative": multiplicative, "dynamics": dynamics}


class Augmentation:
    """Augments real rows: `Augmentation("additive").fit(real).sample(n)`. `kind` is a name in `AUGMENTATIONS`."""

    def __init__(self, kind: str) -> None:
        if kind not in AUGMENTATIONS:
            raise ConfigError(f"unknown augmentation {kind!r}: expected one of {', '.join(AUGMENTATIONS)}")
        self.change = AUGMENTATIONS[kind]
        self.rows: Transitions | None = None

    def fit(self, rows: Transitions) -> Self:
        """Store the rows. Nothing is learned."""
        self.rows = rows
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """Return `count` augmented rows. Only observations and next observations are changed.

        Each call returns different rows. Pass a `seed` to get the same rows again.
        """
        if self.rows is None:
            raise ConfigError("this Augmentation has no rows: call fit(transitions) first")
        count = check_count(count)
        draw = np.random.default_rng(drawing_seed(seed))
        rows = self.rows[draw.integers(len(self.rows), size=count)]
        s, next_s = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
        s, next_s = self.change(s, next_s, draw)
        dtype = np.result_type(rows.observation.dtype, np.float32)  # integers become real numbers
        # Changed one-hot columns are not in their space any more, and rows drawn at random do not form episodes.
        return replace(
            rows,
            observation=s.astype(dtype),
            next_observation=next_s.astype(dtype),
            timeout=None,
            observation_space=None,
        )
