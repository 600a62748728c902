"""Checks of the rows that a generator is fitted on, of the number of rows to sample, and of the seed."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.plain import whole_seed


def check_kind(rows: Any) -> None:
    """Raise an error if `rows` are not `Transitions`."""
    if not isinstance(rows, Transitions):
        raise DataError(
            f"expected Transitions, got {type(rows).__name__}: create them with read(path) or Transitions.of(arrays)"
        )


def check_rows(rows: Transitions) -> None:
    """Raise an error if nothing can be learned from `rows`."""
    check_kind(rows)
    if len(rows) < 2:
        raise DataError(
            f"a generator cannot be fitted on {len(rows)} row: expected at least 2; thousands are recommended"
        )
    if all((array == array[:1]).all() for name, array in rows.arrays().items() if name != "timeout"):
        raise DataError(f"all {len(rows):,} rows are equal: there is no distribution to learn")


def check_count(count: int | None) -> int:
    """Return a number of rows as an int. Whole floats such as 5e6 are accepted. Raise an error for any other value."""
    if not isinstance(count, (int, float, np.number)) or not count >= 1 or count % 1:
        raise ConfigError(f"the number of samples must be a whole number and at least 1, got {count!r}")
    return int(count)


def drawing_seed(seed: int | None) -> int:
    """Return the given seed, or a random one from the operating system if it is None.

    A random seed is above 2**32, so that it never equals a seed that the model uses internally.
    """
    return 1 << 62 | secrets.randbits(62) if seed is None else whole_seed(seed)
