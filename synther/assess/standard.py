"""Columns in units that can be added up: stds of the real rows from their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.moments import Moments

Array = NDArray[Any]

_BLOCK_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class Standard:
    """scaled = (value - centre) / std, with the real rows' figures; `varies` marks columns that have a scale."""

    centre: Array
    std: Array
    """1 where a column never changes: it has no scale of its own."""
    varies: Array

    @classmethod
    def of(cls, matrix: Array) -> Standard:
        """Of the columns of (n, D)."""
        moments = Moments(matrix.shape[1])
        for start in range(0, len(matrix), _BLOCK_ROWS):
            moments.add(matrix[start : start + _BLOCK_ROWS].astype(np.float64, copy=False))
        std = moments.std
        varies = (moments.low != moments.high) & np.isfinite(std)
        centre = np.where(np.isfinite(moments.mean), moments.mean, moments.low)
        return cls(centre, np.where(varies, std, 1.0), varies)

    def scaled(self, matrix: Array, limit: float) -> Array:
        """(n, D) as float32, cut at `limit` stds: one absurd value must not outweigh all the others."""
        scaled = np.empty(matrix.shape, np.float32)
        for start in range(0, len(matrix), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            with np.errstate(over="ignore"):
                part = (matrix[rows].astype(np.float64) - self.centre) / self.std
            scaled[rows] = np.clip(part, -limit, limit)
        return scaled

    def raw(self, scaled: Array) -> Array:
        """Back from `scaled`, in float64."""
        values: Array = scaled.astype(np.float64) * self.std + self.centre
        return values
