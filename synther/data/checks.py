"""Checks of the rows a generator is fitted on, of the number of rows to draw, and of the seed to draw them with."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.plain import whole_seed


def check_kind(rows: Any) -> None:
    """Refuse what is not made of rows."""
    if not isinstance(rows, Transitions):
        raise DataError(
            f"expected Transitions, got {type(rows).__name__}: read(path) and Transitions.of(arrays) make them"
        )


def check_rows(rows: Transitions) -> None:
    """Refuse rows from which nothing can be learned."""
    check_kind(rows)
    if len(rows) < 2:
        raise DataError(f"a generator cannot be fitted on {len(rows)} row: expected at least 2, better thousands")
    if all((array == array[:1]).all() for name, array in rows.arrays().items() if name != "timeout"):
        raise DataError(f"all {len(rows):,} rows are equal: there is no distribution to learn")


def check_count(count: int | None) -> int:
    """A number of rows as an int, 5e6 included; refuse what cannot be drawn."""
    if not isinstance(count, (int, float, np.number)) or not count >= 1 or count % 1:
        raise ConfigError(f"the number of samples must be a whole number and at least 1, got {count!r}")
    return int(count)


def drawing_seed(seed: int | None) -> int:
    """The given seed, or fresh entropy of the operating system for None.

    A fresh seed is above 2**32, where none of the streams is that a model draws from for itself.
    """
    return 1 << 62 | secrets.randbits(62) if seed is None else whole_seed(seed)
