"""The explicit augmentations that the paper compares with: real rows, drawn with replacement and disturbed.

Behind the fit and sample of a `Synthesizer`, so that whatever takes one takes the other.
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


def additive(here: Array, there: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """N(0, 0.1) added to every value of s and of s', each with its own draw (Laskin et al. 2020)."""
    return here + draw.normal(0, 0.1, here.shape), there + draw.normal(0, 0.1, there.shape)


def multiplicative(here: Array, there: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """s and s' multiplied by one number a row from Unif(0.8, 1.2) (Laskin et al. 2020)."""
    factor = draw.uniform(0.8, 1.2, (len(here), 1))
    return here * factor, there * factor


def dynamics(here: Array, there: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """s' - s multiplied by one number a row from Unif(0.5, 1.5) (Ball et al. 2021)."""
    return here, here + draw.uniform(0.5, 1.5, (len(here), 1)) * (there - here)


AUGMENTATIONS: dict[str, Change] = {"additive": additive, "multiplicative": multiplicative, "dynamics": dynamics}


class Augmentation:
    """`Augmentation("additive").fit(real).sample(n)`"""

    def __init__(self, kind: str) -> None:
        if kind not in AUGMENTATIONS:
            raise ConfigError(f"unknown augmentation {kind!r}: expected one of {', '.join(AUGMENTATIONS)}")
        self.change = AUGMENTATIONS[kind]
        self.rows: Transitions | None = None

    def fit(self, rows: Transitions) -> Self:
        """Remember the rows; there is nothing to learn."""
        self.rows = rows
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """`count` disturbed rows; actions, rewards and terminals are those of the real row.

        Every call draws other rows; the same seed gives the same rows.
        """
        if self.rows is None:
            raise ConfigError("this Augmentation has no rows: call fit(transitions) first")
        count = check_count(count)
        draw = np.random.default_rng(drawing_seed(seed))
        rows = self.rows[draw.integers(len(self.rows), size=count)]
        here, there = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
        here, there = self.change(here, there, draw)
        kind = np.result_type(rows.observation.dtype, np.float32)  # whole numbers do not stay whole
        # Disturbed one-hot columns are none any more, and rows drawn one by one form no episodes.
        return replace(
            rows,
            observation=here.astype(kind),
            next_observation=there.astype(kind),
            timeout=None,
            observation_space=None,
        )
