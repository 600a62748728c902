"""Shared by all writers: go through rows in chunks, and check that every row arrives and that columns do not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synther.data.transitions import EXTRA, Array, RowSource, Transitions
from synther.errors import DataError
from synther.formats import metadata

CHUNK_BYTES = 16 << 20
"""Bytes of rows that are written at a time."""


@dataclass(frozen=True)
class Column:
    """Name, type and shape of a field of the rows."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]  # of one row

    @property
    def key(self) -> str:
        """Its name in D4RL's files, such as `observations` for observation. Extra columns keep their own name."""
        return self.name if self.name.startswith(EXTRA) else f"{self.name}s"


class Stream:
    """The rows of a source, with number, columns and metadata, which must be known before the first row is written."""

    def __init__(self, rows: RowSource) -> None:
        first = next(iter(rows.chunks(1)), None)
        if first is None:
            raise DataError("there are no rows to write: expected at least one transition")
        self._source = rows
        self.rows = len(rows)
        self.columns = tuple(Column(name, array.dtype, array.shape[1:]) for name, array in first.arrays().items())
        self.metadata = metadata.dump(first)
        self.env_id = first.env_id
        self.first = first
        row_bytes = sum(column.dtype.itemsize * int(np.prod(column.shape)) for column in self.columns)
        self.chunk_rows = max(1, CHUNK_BYTES // row_bytes)

    def parts(self) -> Iterator[Transitions]:
        """Yield all rows in order, in chunks. Raise an error if columns change or if the number of rows is wrong."""
        done = 0
        for part in self._source.chunks(self.chunk_rows):
            here = tuple(Column(name, array.dtype, array.shape[1:]) for name, array in part.arrays().items())
            if here != self.columns:
                raise DataError(f"the columns change after {done:,} rows: from {self.columns} to {here}")
            done += len(part)
            if done > self.rows:
                break
            yield part
        if done != self.rows:
            raise DataError(f"expected {self.rows:,} rows (their len), got {done:,} or more: nothing was written")

    def chunks(self) -> Iterator[tuple[slice, dict[str, Array]]]:
        """Yield the same chunks as pairs of a slice (their place among all rows) and a dict of arrays."""
        start = 0
        for part in self.parts():
            yield slice(start, start + len(part)), part.arrays()
            start += len(part)
