"""Scale columns with mean and std of the real rows, so that errors in different columns can be compared and added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.moments import Moments
from synther.data.spikes import FEWEST_IN_A_SPIKE, far_spikes

Array = NDArray[Any]

_BLOCK_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class Standard:
    """scaled = (value - centre) / std, with mean and std of the real rows."""

    centre: Array
    std: Array
    """Std of each column; 1 for columns without a scale (see `varies`)."""
    varies: Array
    """Whether each column has a scale: it is not constant, and its std is finite."""

    @classmethod
    def of(cls, matrix: Array, left_out: NDArray[np.bool_] | None = None) -> Standard:
        """Compute mean and std of the columns of (n, D), without the values that are `left_out` (n, D).

        Leave out `far_values`, such as -999 for a missing value: they would hide how much the other values differ.
        """
        if left_out is not None and left_out.any():
            parts = [cls.of(matrix[~out, column, None]) for column, out in enumerate(left_out.T)]
            return cls(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("centre", "std", "varies")))
        moments = Moments(matrix.shape[1])
        for start in range(0, len(matrix), _BLOCK_ROWS):
            moments.add(matrix[start : start + _BLOCK_ROWS].astype(np.float64, copy=False))
        std = moments.std
        varies = (moments.low != moments.high) & np.isfinite(std)
        centre = np.where(np.isfinite(moments.mean), moments.mean, moments.low)
        return cls(centre, np.where(varies, std, 1.0), varies)

    def scaled(self, matrix: Array, limit: float) -> Array:
        """Return the scaled matrix (n, D) in float32, clipped to `limit` stds.

        Without a limit, one extreme value could outweigh all others.
        """
        scaled = np.empty(matrix.shape, np.float32)
        for start in range(0, len(matrix), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            with np.errstate(over="ignore"):
                part = (matrix[rows].astype(np.float64) - self.centre) / self.std
            scaled[rows] = np.clip(part, -limit, limit)
        return scaled

    def raw(self, scaled: Array) -> Array:
        """Convert scaled values back to the original units, in float64."""
        values: Array = scaled.astype(np.float64) * self.std + self.centre
        return values


def far_values(matrix: Array) -> NDArray[np.bool_]:
    """Return which values of (n, D) are their column's lowest or highest, occur again and again, and are far away from
    all others."""
    found = np.zeros(matrix.shape, bool)
    for column, values in enumerate(matrix.T):
        is_end = [values == end for end in (values.min(), values.max())]
        repeated = [values[rows][:1] for rows in is_end if np.count_nonzero(rows) >= FEWEST_IN_A_SPIKE]
        if repeated:
            ends = np.concatenate(repeated).astype(np.float64)
            usual = values[~np.isin(values, ends)].astype(np.float64)
            found[:, column] = np.isin(values, far_spikes(ends, usual))
    return found
