"""Fast path for adding rows to a replay: if types and shapes are the same as before, only the values are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.spaces import Box, OneHot, limits
from synther.data.transitions import ROW_FIELDS
from synther.replay.columns import EXACT, Columns, Matrix

Given = tuple[Any, Any, Any, Any, Any, Any]
"""The arguments of `SyntheticReplay.add`: the five fields of one row or of several rows, and timeouts or None."""

_EXACT_64 = 2.0**53
"""float64 represents all integers up to this one. Larger integers would be rounded twice, to float64 and to float32."""


class Shortcut:
    """Packs rows that pass every check of the slow path. All other rows take the slow path, which reports errors."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._low, self._high = _limits(columns)
        self._kinds: tuple[Any, ...] | None = None
        self._count = 0
        self._places: list[slice | int] = []

    def learn(self, given: Given, count: int) -> None:
        """Remember the types and shapes of `count` rows that have passed every check."""
        self._kinds = tuple(map(_kind, given)) if self._suits(given) else None
        self._count = count
        places, several = [self._columns.places[name] for name in ROW_FIELDS], np.ndim(given[0]) > 1
        # With several rows, a 1-D array is one column of the matrix. With one row, it is a line of the matrix.
        self._places = [
            place.start if several and np.ndim(value) == 1 else place
            for value, place in zip(given[:5], places, strict=True)
        ]

    def pack(self, given: Given) -> Matrix | None:
        """Return the same matrix (N, width) as `Columns.pack`, or None if the slow path is needed."""
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
        """Return whether a check against the limits of each column is enough for rows of these types."""
        known = [value for value in given if value is not None]
        plain = (type(value) is np.ndarray or isinstance(value, (np.generic, float, int)) for value in known)
        if not all(plain):  # for example a masked array
            return False
        kinds = [np.asarray(value).dtype.kind for value in known]
        parts = self._columns.action_space or ()
        if kinds[1] == "f":
            limits_suffice = not self._columns.whole and all(isinstance(part, Box) for part in parts)
        else:
            limits_suffice = not any(isinstance(part, OneHot) for part in parts)
        return limits_suffice and all(kind == "b" for kind in kinds[4:])


def _kind(value: Any) -> Any:
    """Return the type of `value`, with shape and dtype if it has them."""
    return (type(value), value.shape, value.dtype) if isinstance(value, (np.ndarray, np.generic)) else type(value)


def _limits(columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and the largest allowed value of each column, (width,) each."""
    low, high = np.full(columns.width, -_EXACT_64), np.full(columns.width, _EXACT_64)
    action = columns.places["action"]
    if columns.whole:
        low[action], high[action] = -EXACT, EXACT
    ends = limits(columns.action_space, action.stop - action.start)
    low[action], high[action] = np.maximum(low[action], ends[0]), np.minimum(high[action], ends[1])
    return low, high
