"""The result of a metric, and how far it can be off by chance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Better

DUST = 1e-12
"""Smaller figures are rounding errors, for example between a simulator and rows that it made itself. They count as 0.
"""


class Figure(NamedTuple):
    """The result of a metric."""

    value: float | None
    """Figure of the synthetic rows."""
    real: float | None
    """Figure of the held-out real rows."""
    chance: float = 0.0
    """About two standard errors of the difference; 0 if unknown."""
    detail: str = ""
    """The column, pair of columns or problem behind the figure."""
    better: Better | None = None
    """The better direction, if it differs from `Metric.better`."""


def standard_error(values: NDArray[Any], episodes: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """Return the standard error of the mean of `values` (n, ...).

    With the `episodes` (n,) of the rows, only rows of different episodes are independent. Rows of one episode are often
    alike, and then the mean is less certain than that of as many independent rows.
    """
    off = values - values.mean(axis=0)
    if episodes is not None:
        order = np.argsort(episodes, kind="stable")
        first = np.flatnonzero(np.diff(episodes[order], prepend=-1))
        off = np.add.reduceat(off[order], first, axis=0)
    return np.asarray(np.sqrt(np.square(off).sum(axis=0)) / len(values))
