"""Parquet, for engines that spread rows over machines: a file, or a folder of files with the same columns.

Vectors are columns of fixed-size lists: one name for one thing, whatever its width, and no thousand-column schemas.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Array, RowSource, Transitions
from synther.durable import replacing
from synther.errors import DataError, FormatError, MissingExtra
from synther.formats import metadata
from synther.formats.episodes import paired
from synther.formats.reading import Rename, keys_of_fields, reading, settled
from synther.formats.writing import Column, Stream
from synther.schema import check_size

SUFFIXES = (".parquet", ".pq")
ABOUT = ".synther"
"""The folder in a folder of our files that says what they are, and whether all are there: see `RunFolder`."""
BATCH_ROWS = 1 << 16
"""That are decoded at a time."""
_NUMBER_BYTES = 8
"""At most."""
_ROW_LABELS = "__index_level_"
"""Columns that pandas adds to a frame whose rows were chosen or reordered."""
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Types that Arrow calls by other names than NumPy."""


def read(source: str | os.PathLike[str], rename: Rename | None = None) -> Transitions:
    """The rows of a file, or of all files of a folder in the order of their names, where part-2 is before part-10."""
    files = look(source, rename)
    fields: dict[str, Array] = {}
    start = 0
    for path in files.paths:
        with reading(path, "a Parquet file"), opened(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(files.keys.values())):
                _fill(fields, files.keys, batch, start, len(files))
                start += batch.num_rows
    with reading(source, "Parquet"):
        return Transitions.of(paired(settled(fields, files.keys, rename)), **metadata.load(files.known))


def look(source: str | os.PathLike[str], rename: Rename | None = None) -> Files:
    """A file, or all files of a folder, of which nothing but the footers is read. Refuses files that do not match."""
    folder = Path(source)
    first, groups, digest = None, [], hashlib.sha256()
    paths = _whole(folder) if folder.is_dir() else [folder]
    for path in paths:
        with reading(path, "a Parquet file"), opened(path) as file:
            about = _About.of(file, rename)
            if first is None:
                first = about
            about.check_like(first, paths[0])
            _check_columns(file, about.keys.values(), os.path.getsize(path))
            stored = file.metadata
            groups.append(tuple(stored.row_group(number).num_rows for number in range(stored.num_row_groups)))
            digest.update(_footer(path))
    assert first is not None
    if not any(map(sum, groups)):
        raise DataError(f"{source}: no rows: expected at least one transition")
    return Files(tuple(paths), tuple(groups), first.keys, first.known, digest.hexdigest(), rename)


@dataclass(frozen=True)
class Files:
    """Parquet files of the same columns, which are read in parts."""

    paths: tuple[Path, ...]
    groups: tuple[tuple[int, ...], ...]
    """The rows of each row group of each file."""
    keys: Mapping[str, str]
    known: bytes | None
    digest: str
    """Of the footers, which hold the sizes of all columns, and with most writers their least and greatest values."""
    rename: Rename | None = None

    def __len__(self) -> int:
        return sum(map(sum, self.groups))

    def chunks(self, number: int, group: int, start: int, stop: int) -> Iterator[Transitions]:
        """Rows `start` to `stop` of a row group of a file, some ten thousand at a time.

        The rows before them are decoded too, and forgotten: Parquet knows no way to the middle of a row group.
        """
        path, done = self.paths[number], 0
        columns = list(self.keys.values())
        with reading(path, "a Parquet file"), opened(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=columns):
                low, high = max(start - done, 0), min(stop - done, batch.num_rows)
                if low < high:
                    yield self._rows(batch.slice(low, high - low), sum(self.groups[number][:group]) + done + low)
                done += batch.num_rows
                if done >= stop:
                    return
            raise FormatError(f"row group {group} has {done:,} rows, it had {self.groups[number][group]:,} before")

    def _rows(self, batch: Any, first: int) -> Transitions:
        """A batch that begins with row `first` of its file."""
        fields: dict[str, Array] = {}
        _fill(fields, self.keys, batch, 0, batch.num_rows)
        try:
            return Transitions.of(settled(fields, self.keys, self.rename), **metadata.load(self.known))
        except DataError as error:
            last = first + batch.num_rows - 1
            raise DataError(f"among the rows {first:,} to {last:,}, counted from 0: {error}") from error


def opened(path: Path) -> Any:
    return libraries("reading Parquet")[1].ParquetFile(path)


def _footer(path: Path) -> bytes:
    """The bytes that describe a file: its end, before their number and the mark PAR1."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)


def _fill(fields: dict[str, Array], keys: Mapping[str, str], batch: Any, start: int, total: int) -> None:
    """Put the columns of a batch into arrays of `total` rows, from row `start` on."""
    for field, key in keys.items():
        values = to_numpy(key, batch.column(key))
        if field not in fields:
            fields[field] = np.empty((total, *values.shape[1:]), values.dtype)
        if values.shape[1:] != fields[field].shape[1:]:
            raise DataError(f"{key!r} changes its width at row {start:,}: expected vectors of one length")
        fields[field][start : start + batch.num_rows] = values


@dataclass(frozen=True)
class _About:
    """What has to be the same in all files of a folder."""

    keys: dict[str, str]
    types: dict[str, str]
    known: bytes | None

    @classmethod
    def of(cls, file: Any, rename: Rename | None) -> _About:
        schema = file.schema_arrow
        names = [name for name in schema.names if not name.startswith(_ROW_LABELS)]
        keys = keys_of_fields(names, "a Parquet file", rename)
        # Not the whole type: whether it may be null, or how the field of a list is called, makes no difference.
        types = {field: _type_name(schema.field(key).type) for field, key in keys.items()}
        known = (schema.metadata or {}).get(metadata.KEY.encode())
        metadata.load(known)  # which refuses what is damaged
        return cls(keys, types, known)

    def check_like(self, first: _About, where: Path) -> None:
        """Refuse a file with other columns than the first."""
        if (self.keys, self.types) != (first.keys, first.types):
            mine, other = ({about.keys[field]: kind for field, kind in about.types.items()} for about in (self, first))
            apart = [key for key in {**other, **mine} if mine.get(key) != other.get(key)]
            told = ", ".join(f"{key} ({mine.get(key, 'absent')}, not {other.get(key, 'absent')})" for key in apart[:4])
            raise DataError(f"other columns than {where.name}: {told}; expected the same in all files of a folder")
        if self.known != first.known:
            raise DataError(f"another environment, or other spaces, than {where.name}: read the files one by one")


def files_in(folder: Path) -> list[Path]:
    """The Parquet files of a folder in order; numbers in their names count as numbers. Hidden ones are left out."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] not in "._"]
    return sorted((path for path in found if path.is_file()), key=lambda path: _by_number(path.name))


def is_folder(path: Path) -> bool:
    """Whether it is a folder of Parquet files, or is to become one."""
    with reading(path, "a folder of data"):
        return path.is_dir() and (bool(files_in(path)) or (path / ABOUT).is_dir())


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _whole(folder: Path) -> list[Path]:
    """The files of a folder in which nothing is missing."""
    about = folder / ABOUT
    if (about / "run.json").exists() and not (about / "result.json").exists():
        raise FormatError(f"{folder}: `synther sample` has not finished it: run the same command again, and it goes on")
    if (folder / "_temporary").exists():
        raise FormatError(f"{folder}: a writer has not finished it, says its folder _temporary: write it again")
    files = files_in(folder)
    if not files:
        raise FormatError(f"{folder}: a folder without Parquet files: expected names ending in {' or '.join(SUFFIXES)}")
    return files


def _check_columns(file: Any, keys: Iterable[str], stored: int) -> None:
    """Refuse columns of anything but numbers, and more of these than a file of so many `stored` bytes can hold."""
    for key in keys:
        kind = file.schema_arrow.field(key).type
        _check_type(key, kind.value_type if _is_vector(kind) else kind)
    check_sizes(file, keys, stored)


def check_sizes(file: Any, keys: Iterable[str], stored: int) -> None:
    """Refuse columns that declare more than a file of so many `stored` bytes can hold."""
    wanted, about, declared = set(keys), file.metadata, 0
    for group in range(about.num_row_groups):
        row_group = about.row_group(group)
        if row_group.num_columns != about.num_columns:  # PyArrow would end the process at a column that is not there
            raise FormatError(f"row group {group} has {row_group.num_columns} columns, the file {about.num_columns}")
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if column.path_in_schema.partition(".")[0] in wanted:
                declared += max(column.total_uncompressed_size, _NUMBER_BYTES * max(column.num_values, 0))
    check_size(max(declared, about.num_rows * len(wanted)), stored)


def to_numpy(key: str, column: Any) -> Array:
    """A column of numbers to (N,), of lists to (N, W)."""
    pyarrow, _ = libraries("reading Parquet")
    if column.null_count:
        raise DataError(f"{key!r} holds {column.null_count:,} nulls: expected a value in every row")
    if not _is_vector(column.type):
        return _numbers(key, column)
    flat = _numbers(key, column.flatten())
    if not pyarrow.types.is_fixed_size_list(column.type):
        lengths = np.diff(_numbers(key, column.offsets))
        if len(lengths) and (lengths != lengths[0]).any():
            raise DataError(f"{key!r} holds lists of different lengths: expected vectors of one length")
    return flat.reshape(len(column), -1)


def _is_vector(kind: Any) -> bool:
    types = libraries("reading Parquet")[0].types
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def _type_name(kind: Any) -> str:
    return f"vector of {kind.value_type}" if _is_vector(kind) else str(kind)


def _check_type(key: str, kind: Any) -> None:
    types = libraries("reading Parquet")[0].types
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise DataError(f"{key!r} has type {kind}: expected numbers, booleans, or lists of them")


def _numbers(key: str, column: Any) -> Array:
    if column.null_count:
        raise DataError(f"{key!r} holds {column.null_count:,} nulls: expected a number everywhere")
    _check_type(key, column.type)
    dtype = np.dtype(_FLOATS.get(str(column.type), str(column.type)))  # to_pandas_dtype() may need pandas
    start, count = column.offset, len(column)
    if count == 0:
        return np.empty(0, dtype)
    stored = column.buffers()[1]  # to_numpy() would import all of pandas
    if dtype.kind == "b":
        return np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")[start : start + count].astype(bool)
    return np.frombuffer(stored, dtype, count, start * dtype.itemsize)


def write(rows: RowSource, target: str | os.PathLike[str]) -> None:
    """A row group for each chunk, with zstd; dictionaries are off, as no two floats are alike."""
    pyarrow, parquet = libraries("writing Parquet")
    stream = Stream(rows)
    schema = pyarrow.schema(
        [pyarrow.field(column.name, _type(column), nullable=False) for column in stream.columns],
        metadata={metadata.KEY: stream.metadata},
    )
    with (
        replacing(target) as path,
        parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for place, arrays in stream.chunks():
            columns = [_to_arrow(column, arrays[column.name], schema) for column in stream.columns]
            table = pyarrow.Table.from_arrays(columns, schema=schema)
            writer.write_table(table, row_group_size=place.stop - place.start)


def _type(column: Column) -> Any:
    pyarrow, _ = libraries("writing Parquet")
    scalar = pyarrow.from_numpy_dtype(column.dtype.newbyteorder("="))
    if not column.shape:
        return scalar
    return pyarrow.list_(pyarrow.field("element", scalar, nullable=False), column.shape[0])


def _to_arrow(column: Column, array: Array, schema: Any) -> Any:
    pyarrow, _ = libraries("writing Parquet")
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    # From buffers: pyarrow.array() would import all of pandas only to see that this is no Series.
    stored = np.packbits(native, bitorder="little") if native.dtype == bool else native
    flat = pyarrow.Array.from_buffers(
        pyarrow.from_numpy_dtype(native.dtype), len(native), [None, pyarrow.py_buffer(stored)]
    )
    if not column.shape:
        return flat
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.field(column.name).type)


def libraries(purpose: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", purpose) from None
    return pyarrow, pyarrow.parquet
