"""`Encoder`: turns rows into the matrix of their layout. `Decoder` does the reverse.

Example: a discrete action 2 of 4 becomes the one-hot code 0 0 1 0, and a next angle that jumps from 3.1 to -3.1 becomes
a number slightly above 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from synther.data import following
from synther.data.clipping import drawing
from synther.data.formulas import as_fields
from synther.data.holding import put_changes
from synther.data.kinds import Array, Constant, Matrix
from synther.data.transitions import PAIR, ROW_FIELDS
from synther.data.turning import put_angles
from synther.data.wrapping import unwrapped
from synther.errors import DataError

if TYPE_CHECKING:
    from synther.data.layout import Layout, Place

CHUNK = 1 << 14  # rows that are encoded at a time: a few dozen columns of these fit in the cache of a CPU


class Encoder:
    """Turns rows into the matrix of their layout. Nothing is scaled or clipped."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        after = [place for place in layout.places if place.field == PAIR[1]]
        circular = [(place.matrix.start, place.kind.circle) for place in after if place.kind.circle]
        self._circles = [(column, layout.twins[column], period) for column, period in circular]
        """For each circular next observation: its matrix column, the column of its value before the step, its
        period."""

    def __call__(self, fields: Mapping[str, Array]) -> Matrix:
        """Return the matrix (N, D) of rows for which only these `fields` are known. The columns of other fields are
        0."""
        layout = self._layout
        sources = {field: values.reshape(len(values), -1) for field, values in fields.items()}
        for field, source in sources.items():
            if source.shape[1] != layout.field_widths[field]:
                raise DataError(
                    f"{field} has {source.shape[1]} columns: expected {layout.field_widths[field]}, as in the rows of "
                    "the fit"
                )
        count = len(next(iter(sources.values())))
        matrix = (np.empty if len(sources) == len(layout.field_widths) else np.zeros)((count, layout.width))
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            for place in layout.runs:
                if place.field in sources:
                    source = sources[place.field][part, place.source]
                    self._check(place, source, start)
                    matrix[part, place.matrix] = place.kind.encode(source)
        if sources.keys() >= {*PAIR}:
            for column, before, period in self._circles:
                matrix[:, column] = unwrapped(matrix[:, before], matrix[:, column], period)
        if layout.turns and sources.keys() >= {*PAIR, "action"}:
            put_angles(layout, matrix, sources)
        if layout.held and sources.keys() >= {*PAIR}:
            put_changes(layout, matrix, sources)
        if layout.clips and sources.keys() >= {*PAIR, "action"}:
            self._unclip(matrix, sources["observation"])
        if layout.sparse is not None and sources.keys() >= {*ROW_FIELDS}:
            layout.sparse.put_amounts(layout, matrix, sources["reward"][:, 0], sources["terminal"][:, 0])
        for column in layout.columns_of("reward"):  # no column if a formula gives the exact reward
            if layout.terminal_reward and sources.keys() >= {"reward", "terminal"}:
                matrix[:, column] -= layout.terminal_reward * sources["terminal"][:, 0]
            if layout.formula is not None and sources.keys() >= {*PAIR, "action", "reward"}:
                matrix[:, column] -= layout.formula(as_fields(sources)).numpy()
            if layout.at_end is not None and layout.sparse is None and sources.keys() >= {"reward", "terminal"}:
                ends = sources["terminal"][:, 0]
                paid = sources["reward"][ends, 0]
                matrix[ends, column] = 0.0 if layout.formula is not None else layout.at_end.spread(paid)
        if layout.following and sources.keys() >= {*ROW_FIELDS}:
            values = {number: layout.values(number, sources) for number in layout.table_places}
            draw = following.stream()
            for table, column in zip(layout.following, layout.drawn_columns, strict=True):
                matrix[:, column] = table.spread(values, draw)
        return matrix

    def fitting(self, fields: Mapping[str, Array]) -> NDArray[np.bool_]:
        """Return which rows can be encoded: rows without a value that is impossible in its column. (N,)"""
        count = len(fields["reward"])
        fits = np.ones(count, bool)
        for place in self._layout.runs:
            wrong = self._misfit(place, fields[place.field].reshape(count, -1)[:, place.source])
            if wrong is not None:
                fits &= ~wrong
        return fits

    def _misfit(self, place: Place, source: Array) -> NDArray[np.bool_] | None:
        """Return which rows of these columns cannot be encoded (N,). None: all rows can."""
        own = self._layout.dtype_of(place.field)
        finer = source.dtype.kind == own.kind == "f" and source.itemsize > own.itemsize
        with np.errstate(over="ignore"):
            if isinstance(place.kind, Constant) and finer:  # so that 0.1 in float64 equals a constant 0.1 in float32
                source = source.astype(own)
            return place.kind.misfit(source)

    def _check(self, place: Place, source: Array, start: int) -> None:
        """Raise an error that names the first value that cannot be encoded. `start` is the number of the first row."""
        wrong = self._misfit(place, source)
        if wrong is not None and wrong.any():
            row = int(np.argmax(wrong))
            value = source[row].tolist()
            raise DataError(
                f"{place.names[0]} is {value[0] if len(value) == 1 else value} in row {start + row}: "
                f"expected {place.kind.expected}"
            )

    def _unclip(self, matrix: Matrix, observation: Array) -> None:
        """Replace clipped next observations by values that they may have had before clipping."""
        layout = self._layout
        given, draw = layout.regressors(matrix), drawing()
        for clip in layout.clips:
            column = layout.next_columns[clip.column]
            before = observation[:, clip.column].astype(np.float64)
            matrix[:, column] = clip.unclipped(given, before, matrix[:, column], draw)
