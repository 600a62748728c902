"""Statistics of columns, computed on all rows at once or block by block in one pass over the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions

Matrix = NDArray[np.float64]

FIGURES = ("mean", "std", "min", "max")
"""The figures that `column_figures` computes."""


class Moments:
    """Mean, std, minimum and maximum of D columns. Blocks of rows are combined as in Chan et al. (1983).

    Values are measured relative to the first row, and squares in units of the largest difference, so that a large
    offset or a very large or small scale costs no precision. Results that still overflow are not finite.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        """Number of rows."""
        self.low = np.full(columns, np.inf)
        self.high = np.full(columns, -np.inf)
        self._origin = np.zeros(columns)
        self._mean = np.zeros(columns)  # of value - origin
        self._unit = np.zeros(columns)
        self._squares = np.zeros(columns)  # sum of ((value - mean) / unit)^2

    def add(self, block: Matrix) -> None:
        """Add the rows of a block (n, D)."""
        if not len(block):
            return
        if not self.count:
            self._origin = block[0].copy()
        self.low = np.minimum(self.low, block.min(0))
        self.high = np.maximum(self.high, block.max(0))
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            values = block - self._origin
            mean = values.mean(0)
            values -= mean
            unit = np.maximum(values.max(0), -values.min(0))
            values /= _nonzero(unit)
            squares = np.einsum("nd,nd->d", values, values)
            self._merge(len(block), mean, unit, squares)

    def _merge(self, count: int, mean: Matrix, unit: Matrix, squares: Matrix) -> None:
        step = mean - self._mean
        widest = np.maximum(np.maximum(self._unit, unit), np.abs(step) if self.count else 0.0)
        divisor = _nonzero(widest)
        total = self.count + count
        self._squares = (
            self._squares * (self._unit / divisor) ** 2
            + squares * (unit / divisor) ** 2
            + (step / divisor) ** 2 * (self.count * (count / total))
        )
        self._mean = self._mean + step * (count / total)
        self._unit = widest
        self.count = total

    @property
    def mean(self) -> Matrix:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._origin + self._mean

    @property
    def std(self) -> Matrix:
        """The population std, i.e. without Bessel's correction (D,). It is above 0 for every column that is not
        constant."""
        with np.errstate(over="ignore", invalid="ignore"):
            std = self._unit * np.sqrt(self._squares / max(self.count, 1))
        return np.where(std == 0, self._unit, std)


def _nonzero(unit: Matrix) -> Matrix:
    return np.where(unit == 0, 1.0, unit)


class RowSample:
    """A uniform random sample of at most `limit` rows from a stream of unknown length, in random order. It does not
    depend on how the stream is divided into blocks."""

    def __init__(self, seed: int, limit: int = 1 << 18) -> None:
        self._random = np.random.default_rng(seed)
        self._limit = limit
        self._bound = 1.0  # rows with a key above this are certainly not in the sample
        self._keys: list[Matrix] = []
        self._rows: list[Matrix] = []

    def add(self, block: Matrix) -> None:
        """Add the rows of a block (n, D). Every row gets a random key, and the rows with the smallest keys are kept."""
        keys = self._random.random(len(block))
        staying = keys < self._bound
        self._keys.append(keys[staying])
        self._rows.append(block[staying])
        if sum(map(len, self._keys)) > 2 * self._limit:
            self._drop()

    def _drop(self) -> None:
        """Drop all but the `limit` rows with the smallest keys."""
        keys, rows = np.concatenate(self._keys), np.concatenate(self._rows)
        if len(keys) > self._limit:
            kept = np.argpartition(keys, self._limit)[: self._limit]
            keys, rows = keys[kept], rows[kept]
            self._bound = keys.max()
        self._keys, self._rows = [keys], [rows]

    @property
    def rows(self) -> Matrix:
        """The rows of the sample. (n, D)"""
        self._drop()
        return self._rows[0][np.argsort(self._keys[0])]


def column_figures(rows: Transitions) -> Iterator[dict[str, Any]]:
    """Yield a dict with the `name` of each modelled column and its `FIGURES`."""
    for name, array in rows.modelled().items():
        for number, column in enumerate(array.reshape(len(rows), -1).T):
            values = column.astype(np.float64)
            largest = float(np.abs(values).max()) or 1.0
            unit = values / largest  # so that squares of large numbers do not overflow
            figures = (unit.mean() * largest, unit.std() * largest, values.min(), values.max())
            label = name if array.ndim == 1 else f"{name}[{number}]"
            yield {"name": label, **dict(zip(FIGURES, map(float, figures), strict=True))}
