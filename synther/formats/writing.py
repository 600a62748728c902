"""What every writer owes its caller: errors that name the file, the same columns throughout, and every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synther.data.transitions import EXTRA, Array, RowSource, Transitions
from synther.errors import DataError
from synther.formats import metadata

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Column:
    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]  # of one row

    @property
    def key(self) -> str:
        """Its name in D4RL's files: `observations` for observation. Extra columns have their own."""
        return self.name if self.name.startswith(EXTRA) else f"{self.name}s"


class Stream:
    """The rows of a source, with what has to be known of them before the first is written."""

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
        """Every row once, in order, of unchanging shape and type."""
        done = 0
        for part in self._source.chunks(self.chunk_rows):
            here = tuple(Column(name, array.dtype, array.shape[1:]) for name, array in part.arrays().items())
            if here != self.columns:
                raise DataError(f"rows change their columns after {done:,} rows: from {self.columns} to {here}")
            done += len(part)
            if done > self.rows:
                break
            yield part
        if done != self.rows:
            raise DataError(f"the rows say that they are {self.rows:,}, but {done:,} or more came: nothing was written")

    def chunks(self) -> Iterator[tuple[slice, dict[str, Array]]]:
        """The same as places in a file and arrays."""
        start = 0
        for part in self.parts():
            yield slice(start, start + len(part)), part.arrays()
            start += len(part)
