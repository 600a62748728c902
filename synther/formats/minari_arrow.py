"""The episodes of a Minari data set that is stored with Arrow or Parquet: a folder for each, with one file in it."""

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
"""What is read of an episode."""
_MAGIC = b"ARROW1\0\0"


class ArrowEpisodes:
    def __init__(self, folder: Path, kind: str) -> None:
        parquet.libraries("reading a Minari data set that is stored with Arrow")
        self._folder, self._kind = folder, kind

    @cached_property
    def size(self) -> int:
        return sum(os.path.getsize(self._path(number)) for number in range(self.count))

    @cached_property
    def count(self) -> int:
        number = 0
        while self._path(number).is_file():
            number += 1
        return number

    def read(self, count: int) -> Iterator[dict[str, ArrowColumn]]:
        """The columns of the first episodes."""
        for number in range(count):
            path = self._path(number)
            table = _arrow_table(path) if self._kind == "arrow" else _parquet_table(path)
            if len(table) < 2:
                raise DataError(f"{_named(path)} has {len(table)} rows: expected one more than steps")
            # All columns are as long as that of the observations, which are one more than the steps.
            lengths = {name: len(table) - (name != "observations") for name in STEPS}
            yield {
                name: ArrowColumn(name, table.column(name).slice(0, length).combine_chunks())
                for name, length in lengths.items()
            }

    def _path(self, number: int) -> Path:
        return self._folder / str(number) / f"part-0.{self._kind}"


class ArrowColumn:
    """The values of a space."""

    def __init__(self, name: str, stored: Any) -> None:
        self._name, self._stored = name, stored

    def inner(self, key: str | int) -> ArrowColumn:
        """Those of a space in a Dict or a Tuple."""
        return ArrowColumn(f"{self._name}/{key}", self._stored.field(str(key)))

    def numbers(self, shape: Sequence[int]) -> Array:
        return parquet.to_numpy(self._name, self._stored).reshape(len(self._stored), *shape)

    def jpegs(self) -> Sequence[bytes] | None:
        """Images in files, if that is what is stored."""
        if not parquet.libraries("reading images")[0].types.is_binary(self._stored.type):
            return None
        return [value.as_py() or b"" for value in self._stored]


def _parquet_table(path: Path) -> Any:
    with parquet.opened(path) as file:
        parquet.check_sizes(file, STEPS, os.path.getsize(path))
        return file.read(columns=list(STEPS))


def _arrow_table(path: Path) -> Any:
    """A file of Arrow, read as the stream that it holds after its first bytes.

    Compressed batches are refused: Arrow would take as much memory for them as they declare.
    """
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        content = file.read_buffer()
        if content[: len(_MAGIC)].to_pybytes() != _MAGIC:
            raise FormatError(f"{_named(path)} is no file of Arrow")
        messages = pyarrow.ipc.MessageReader.open_stream(content[len(_MAGIC) :])
        schema = pyarrow.ipc.read_schema(messages.read_next_message())
        batches = []
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise FormatError(
                    f"{_named(path)} holds a compressed or encoded batch of rows: expected plain ones, "
                    "as Minari writes them; write the data set with Minari again"
                )
            batches.append(pyarrow.ipc.read_record_batch(message, schema))
        table = pyarrow.Table.from_batches(batches, schema).select(STEPS)
        table.validate(full=True)
        return table


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _is_compressed(message: bytes) -> bool:
    """Whether a record batch is compressed, by `compression` in its description (Message.fbs of Arrow)."""
    header = _field(message, _number(message, 0, 4), 2)
    return _field(message, header + _number(message, header, 4), 3) > 0


def _field(data: bytes, table: int, which: int) -> int:
    """Where a field of a table of FlatBuffers begins; 0 if it is not there."""
    entries = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    place = 4 + 2 * which
    offset = _number(data, entries + place, 2) if place < _number(data, entries, 2) else 0
    return table + offset if offset else 0


def _number(data: bytes, place: int, width: int) -> int:
    return int.from_bytes(data[place : place + width], "little")
