"""Fast path into a replay for rows with the same types and shapes as before: only their values are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.spaces import Box, Discrete, OneHot
from synther.data.transitions import ROW_FIELDS
from synther.replay.columns import EXACT, Columns, Matrix

Given = tuple[Any, Any, Any, Any, Any, Any]
"""The fields of one or several rows, and timeouts or None, as given by the caller."""

_EXACT_64 = 2.0**53
"""float64 represents all integers up to here, so rounding again to float32 is harmless."""


class Shortcut:
    """Packs rows that would pass every check. All other rows take the slow path, which reports errors."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._low, self._high = _limits(columns)
        self._kinds: tuple[Any, ...] | None = None
        self._count = 0
        self._places: list[slice | int] = []

    def learn(self, given: Given, count: int) -> None:
        """Remember types and shapes of rows that have passed every check."""
        self._kinds = tuple(map(_kind, given)) if self._suits(given) else None
        self._count = count
        places, several = [self._columns.places[name] for name in ROW_FIELDS], np.ndim(given[0]) > 1
        # For several rows a vector is a column; for one row it is a line.
        self._places = [
            place.start if several and np.ndim(value) == 1 else place
            for value, place in zip(given[:5], places, strict=True)
        ]

    def pack(self, given: Given) -> Matrix | None:
        """The same as `Columns.pack` (N, width), or None if the slow path is needed."""
        if tuple(map(_kind, given)) != self._kinds:
            return None
        matrix = np.empty((self._count, self._columns.width))
        try:
            for value, place in zip(given[:5], self._places, strict=True):
                matrix[:, place] = value
        except OverflowError:  # an integer that is too large for a float
            return None
        inside = (matrix >= self._low) & (matrix <= self._high)  # False for NaN
        return matrix.astype(np.float32) if np.count_nonzero(inside) == inside.size else None

    def _suits(self, given: Given) -> bool:
        """Whether checking the limits is enough for rows of these types."""
        known = [value for value in given if value is not None]
        plain = (type(value) is np.ndarray or isinstance(value, (np.generic, float, int)) for value in known)
        if not all(plain):  # for example a masked array
            return False
        kinds = [np.asarray(value).dtype.kind for value in known]
        parts = self._columns.action_space or ()
        if kinds[1] == "f":
            decided = not self._columns.whole and all(isinstance(part, Box) for part in parts)
        else:
            decided = not any(isinstance(part, OneHot) for part in parts)
        return decided and all(kind == "b" for kind in kinds[4:])


def _kind(value: Any) -> Any:
    return (type(value), value.shape, value.dtype) if isinstance(value, (np.ndarray, np.generic)) else type(value)


def _limits(columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value of each column. (width,) each"""
    low, high = np.full(columns.width, -_EXACT_64), np.full(columns.width, _EXACT_64)
    action = columns.places["action"]
    if columns.whole:
        low[action], high[action] = -EXACT, EXACT
    start = action.start
    for part in columns.action_space or ():
        place = slice(start, start + part.width)
        ends: Any = 0, 1
        if isinstance(part, Box):
            ends = part.low, part.high
        elif isinstance(part, Discrete):
            ends = part.start, part.start + part.size - 1
        low[place], high[place] = np.maximum(low[place], ends[0]), np.minimum(high[place], ends[1])
        start += part.width
    return low, high
