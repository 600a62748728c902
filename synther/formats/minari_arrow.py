"""Read Minari data sets that are stored as Arrow or Parquet: each episode is a folder with one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from synther.data.transitions import Array
from synther.errors import DataError, FormatError
from synther.formats import parquet

STEPS = ("observations", "actions", "rewards", "terminations", "truncations")
"""The columns of an episode that are read."""
_MAGIC = b"ARROW1\0\0"
"""The first bytes of an Arrow file."""


class ArrowEpisodes:
    """The episodes of a data set in `folder`. `kind` is "arrow" or "parquet"."""

    def __init__(self, folder: Path, kind: str) -> None:
        parquet.libraries("reading a Minari data set that is stored with Arrow")
        self._folder, self._kind = folder, kind

    @cached_property
    def size(self) -> int:
        """Size of the stored episodes in bytes."""
        return sum(os.path.getsize(self._path(number)) for number in range(self.count))

    @cached_property
    def count(self) -> int:
        """Number of stored episodes."""
        number = 0
        while self._path(number).is_file():
            number += 1
        return number

    def read(self, count: int) -> Iterator[dict[str, ArrowColumn]]:
        """Yield the columns of the first `count` episodes, one episode at a time."""
        for number in range(count):
            path = self._path(number)
            table = _arrow_table(path) if self._kind == "arrow" else _parquet_table(path)
            if len(table) < 2:
                raise DataError(f"{_named(path)} has {len(table)} rows: expected at least 2, one more than steps")
            # All columns have one value more than steps. Only the observations need it.
            lengths = {name: len(table) - (name != "observations") for name in STEPS}
            yield {
                name: ArrowColumn(name, table.column(name).slice(0, length).combine_chunks())
                for name, length in lengths.items()
            }

    def _path(self, number: int) -> Path:
        return self._folder / str(number) / f"part-0.{self._kind}"


class ArrowColumn:
    """The stored values of a space, for one episode."""

    def __init__(self, name: str, stored: Any) -> None:
        self._name, self._stored = name, stored

    def inner(self, key: str | int) -> ArrowColumn:
        """Return the values of one part of a Dict or Tuple space."""
        return ArrowColumn(f"{self._name}/{key}", self._stored.field(str(key)))

    def numbers(self, shape: Sequence[int]) -> Array:
        """Return the values as an array (N, *shape)."""
        return parquet.to_numpy(self._name, self._stored).reshape(len(self._stored), *shape)

    def jpegs(self) -> Sequence[bytes] | None:
        """Return the values as JPEG files, or None if they are stored as numbers."""
        if not parquet.libraries("reading images")[0].types.is_binary(self._stored.type):
            return None
        return [value.as_py() or b"" for value in self._stored]


def _parquet_table(path: Path) -> Any:
    with parquet.opened(path) as file:
        parquet.check_sizes(file, STEPS, os.path.getsize(path))
        return file.read(columns=list(STEPS))


def _arrow_table(path: Path) -> Any:
    """Read an Arrow file, as the stream that it contains after its first bytes.

    Compressed batches are refused, because Arrow would allocate as much memory as they declare.
    """
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        content = file.read_buffer()
        if content[: len(_MAGIC)].to_pybytes() != _MAGIC:
            raise FormatError(f"{_named(path)} is not an Arrow file")
        messages = pyarrow.ipc.MessageReader.open_stream(content[len(_MAGIC) :])
        schema = pyarrow.ipc.read_schema(messages.read_next_message())
        batches = []
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise FormatError(
                    f"{_named(path)} holds a compressed or encoded batch of rows: expected plain batches, "
                    "as Minari writes them; write the data set again with Minari"
                )
            batches.append(pyarrow.ipc.read_record_batch(message, schema))
        table = pyarrow.Table.from_batches(batches, schema).select(STEPS)
        table.validate(full=True)
        return table


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _is_compressed(message: bytes) -> bool:
    """Return whether a record batch is compressed: the field `compression` of its header (Message.fbs of Arrow)."""
    header = _field(message, _number(message, 0, 4), 2)
    return _field(message, header + _number(message, header, 4), 3) > 0


def _field(data: bytes, table: int, which: int) -> int:
    """Return the offset at which field number `which` of a FlatBuffers table starts, or 0 if it is missing."""
    entries = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    place = 4 + 2 * which
    offset = _number(data, entries + place, 2) if place < _number(data, entries, 2) else 0
    return table + offset if offset else 0


def _number(data: bytes, place: int, width: int) -> int:
    """Return the unsigned integer of `width` bytes at offset `place`."""
    return int.from_bytes(data[place : place + width], "little")
