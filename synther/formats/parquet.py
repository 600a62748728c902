"""Parquet: a file, or a folder of files with the same columns. Many engines for distributed data can read it.

A vector is written as one column of fixed-size lists, so each field is one column, for any width of the vector. Vectors
with one column for each number, as in a table of pandas, are read too.
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

from synther.data.transitions import Array, RowSource, Transitions, numbered
from synther.durable import replacing
from synther.errors import DataError, FormatError, MissingExtra
from synther.formats import metadata
from synther.formats.episodes import paired
from synther.formats.reading import Rename, keys_of_fields, reading, separate_timeouts
from synther.formats.writing import Column, Stream
from synther.schema import check_size

SUFFIXES = (".parquet", ".pq")
ABOUT = ".synther"
"""Name of a folder beside the files that SynthER writes. It describes them and says whether all are written: see
`RunFolder`."""
BATCH_ROWS = 1 << 16
"""Number of rows that are decoded at a time."""
_NUMBER_BYTES = 8
"""Maximum number of bytes of a number."""
Columns = tuple[str, ...]
"""The columns that hold a field: one column of numbers or vectors, or a column for each number."""
_ROW_LABELS = "__index_level_"
"""Prefix of columns that pandas adds to a DataFrame if its rows were selected or reordered."""
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""NumPy's names for types that have another name in Arrow."""


def read(source: str | os.PathLike[str], rename: Rename | None = None) -> Transitions:
    """Read the rows of a file, or of all files of a folder, in the order of their names (part-2 before part-10)."""
    files = look(source, rename)
    fields: dict[str, Array] = {}
    start = 0
    for path in files.paths:
        with reading(path, "a Parquet file"), opened(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=files.columns):
                _fill(fields, files.keys, batch, start, len(files))
                start += batch.num_rows
    with reading(source, "Parquet"):
        fields = separate_timeouts(fields, files.first_keys, rename)
        return Transitions.of(paired(fields), **metadata.load(files.known))


def look(source: str | os.PathLike[str], rename: Rename | None = None) -> Files:
    """Read only the footers of a file, or of all files of a folder. Raise an error if the files do not match."""
    folder = Path(source)
    first, groups, digest = None, [], hashlib.sha256()
    paths = _complete_files(folder) if folder.is_dir() else [folder]
    for path in paths:
        with reading(path, "a Parquet file"), opened(path) as file:
            about = _About.of(file, rename)
            if first is None:
                first = about
            about.check_like(first, paths[0])
            _check_columns(file, about.types, os.path.getsize(path))
            stored = file.metadata
            groups.append(tuple(stored.row_group(number).num_rows for number in range(stored.num_row_groups)))
            digest.update(_footer(path))
    assert first is not None
    if not any(map(sum, groups)):
        raise DataError(f"{source}: no rows: expected at least one transition")
    return Files(tuple(paths), tuple(groups), first.keys, first.known, digest.hexdigest(), rename)


@dataclass(frozen=True)
class Files:
    """Parquet files with the same columns, which are read in parts."""

    paths: tuple[Path, ...]
    groups: tuple[tuple[int, ...], ...]
    """Number of rows in each row group of each file."""
    keys: Mapping[str, Columns]
    """For each field, the columns that hold it."""
    known: bytes | None
    """Metadata of the rows, as in `synther.formats.metadata`."""
    digest: str
    """Hash of the footers, which contain the sizes of all columns, and with most writers their minima and maxima."""
    rename: Rename | None = None

    def __len__(self) -> int:
        return sum(map(sum, self.groups))

    @property
    def columns(self) -> list[str]:
        """All columns that hold fields."""
        return [key for own in self.keys.values() for key in own]

    @property
    def first_keys(self) -> dict[str, str]:
        """For each field, the first of its columns."""
        return {field: own[0] for field, own in self.keys.items()}

    def chunks(self, number: int, group: int, start: int, stop: int) -> Iterator[Transitions]:
        """Yield rows `start` to `stop` of row group `group` in file `number`, some ten thousand at a time.

        The rows before `start` are decoded too and then dropped, because Parquet cannot start in the middle of a row
        group.
        """
        path, done = self.paths[number], 0
        columns = self.columns
        with reading(path, "a Parquet file"), opened(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=columns):
                low, high = max(start - done, 0), min(stop - done, batch.num_rows)
                if low < high:
                    yield self._rows(batch.slice(low, high - low), sum(self.groups[number][:group]) + done + low)
                done += batch.num_rows
                if done >= stop:
                    return
            raise FormatError(
                f"row group {group} has {done:,} rows, but it had {self.groups[number][group]:,} when it was first "
                "read: do not change files while they are read"
            )

    def _rows(self, batch: Any, first: int) -> Transitions:
        """Convert a batch to rows. `first` is the number of its first row within the file, for errors."""
        fields: dict[str, Array] = {}
        _fill(fields, self.keys, batch, 0, batch.num_rows)
        try:
            return Transitions.of(separate_timeouts(fields, self.first_keys, self.rename), **metadata.load(self.known))
        except DataError as error:
            last = first + batch.num_rows - 1
            raise DataError(f"in rows {first:,} to {last:,} (counted from 0): {error}") from error


def opened(path: Path) -> Any:
    """Open a Parquet file for reading."""
    return libraries("reading Parquet")[1].ParquetFile(path)


def _footer(path: Path) -> bytes:
    """Return the footer of a file. It lies at the end, before its length (4 bytes) and the mark PAR1."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)


def _fill(fields: dict[str, Array], keys: Mapping[str, Columns], batch: Any, start: int, total: int) -> None:
    """Copy the columns of a batch into the arrays `fields`, from row `start` on. New arrays have `total` rows."""
    for field, own in keys.items():
        parts = [to_numpy(key, batch.column(key)) for key in own]
        values = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if field not in fields:
            fields[field] = np.empty((total, *values.shape[1:]), values.dtype)
        if values.shape[1:] != fields[field].shape[1:]:
            raise DataError(f"{own[0]!r} changes its width at row {start:,}: expected vectors of the same length")
        fields[field][start : start + batch.num_rows] = values


@dataclass(frozen=True)
class _About:
    """What must be the same in all files of a folder: columns, their types, and metadata."""

    keys: dict[str, Columns]
    types: dict[str, str]
    """The type of each column."""
    known: bytes | None

    @classmethod
    def of(cls, file: Any, rename: Rename | None) -> _About:
        """Read it from the footer of a file."""
        schema = file.schema_arrow
        names = [name for name in schema.names if not name.startswith(_ROW_LABELS)]
        keys = _columns_of_fields(names, rename)
        # Only the element type is compared. Nullability and the name of a list's field do not matter.
        types = {key: _type_name(schema.field(key).type) for own in keys.values() for key in own}
        known = (schema.metadata or {}).get(metadata.KEY.encode())
        metadata.load(known)  # raises an error if it is damaged
        return cls(keys, types, known)

    def check_like(self, first: _About, where: Path) -> None:
        """Raise an error if this file does not match `first`, the first file of the folder (at `where`)."""
        if (self.keys, self.types) != (first.keys, first.types):
            mine, other = self.types, first.types
            apart = [key for key in {**other, **mine} if mine.get(key) != other.get(key)]
            shown = ", ".join(
                f"{key} ({mine.get(key, 'missing')}, not {other.get(key, 'missing')})" for key in apart[:4]
            )
            raise DataError(f"other columns than {where.name}: {shown}; expected the same in all files of a folder")
        if self.known != first.known:
            raise DataError(f"another environment, or other spaces, than in {where.name}: read the files one by one")


def _columns_of_fields(names: list[str], rename: Rename | None) -> dict[str, Columns]:
    """Return the columns that hold each field. Columns of single numbers, such as `obs_0` and `obs_1`, are joined."""
    rename, parts = rename or {}, dict[str, dict[int, str]]()
    called = {name: rename.get(name, name) for name in names}
    places = {name: numbered(own) for name, own in called.items() if own is not None}
    for name, place in places.items():
        if place is not None:
            parts.setdefault(place[0], {})[place[1]] = name
    joined = {name for own in parts.values() for name in own.values()}
    single = [name for name in names if name not in joined]
    others = {name: own for name, own in rename.items() if name not in joined}
    keys = keys_of_fields([*single, *parts], "a Parquet file", others)
    for key, own in parts.items():
        if key in keys.values() and sorted(own) != list(range(len(own))):
            raise DataError(f"{key} has the columns {sorted(own)}: expected 0 to {len(own) - 1}")
    return {
        field: tuple(parts[key][n] for n in sorted(parts[key])) if key in parts else (key,)
        for field, key in keys.items()
    }


def files_in(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, without hidden ones. They are sorted by name, with numbers as numbers."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] not in "._"]
    return sorted((path for path in found if path.is_file()), key=lambda path: _by_number(path.name))


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder of Parquet files, or one that `synther sample` has started to write."""
    with reading(path, "a folder of data"):
        return path.is_dir() and (bool(files_in(path)) or (path / ABOUT).is_dir())


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key in which numbers in `name` are compared as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _complete_files(folder: Path) -> list[Path]:
    """Return the files of a folder. Raise an error if a writer has not finished it."""
    about = folder / ABOUT
    if (about / "run.json").exists() and not (about / "result.json").exists():
        raise FormatError(f"{folder}: `synther sample` has not finished it: run the same command again to resume")
    if (folder / "_temporary").exists():
        raise FormatError(f"{folder}: a writer has not finished it (there is a folder _temporary): write it again")
    files = files_in(folder)
    if not files:
        raise FormatError(f"{folder}: no Parquet files in this folder: expected names with {' or '.join(SUFFIXES)}")
    return files


def _check_columns(file: Any, keys: Iterable[str], stored: int) -> None:
    """Raise an error if a column does not hold numbers, or declares more than a file of `stored` bytes can hold."""
    for key in keys:
        kind = file.schema_arrow.field(key).type
        _check_type(key, kind.value_type if _is_vector(kind) else kind)
    check_sizes(file, keys, stored)


def check_sizes(file: Any, keys: Iterable[str], stored: int) -> None:
    """Raise an error if the columns declare more data than a file of `stored` bytes can hold."""
    wanted, about, declared = set(keys), file.metadata, 0
    for group in range(about.num_row_groups):
        row_group = about.row_group(group)
        if row_group.num_columns != about.num_columns:  # reading a missing column would crash PyArrow
            raise FormatError(
                f"row group {group} has {row_group.num_columns} columns, but the file declares "
                f"{about.num_columns}: it is damaged"
            )
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if column.path_in_schema.partition(".")[0] in wanted:
                declared += max(column.total_uncompressed_size, _NUMBER_BYTES * max(column.num_values, 0))
    check_size(max(declared, about.num_rows * len(wanted)), stored)


def to_numpy(key: str, column: Any) -> Array:
    """Convert a column of numbers to an array (N,), or a column of lists to an array (N, W)."""
    pyarrow, _ = libraries("reading Parquet")
    if column.null_count:
        raise DataError(f"{key!r} holds {column.null_count:,} nulls: expected a value in every row")
    if not _is_vector(column.type):
        return _numbers(key, column)
    flat = _numbers(key, column.flatten())
    if not pyarrow.types.is_fixed_size_list(column.type):
        lengths = np.diff(_numbers(key, column.offsets))
        if len(lengths) and (lengths != lengths[0]).any():
            raise DataError(f"{key!r} holds lists of different lengths: expected vectors of the same length")
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
    """Convert a column of numbers or booleans to an array (N,)."""
    if column.null_count:
        raise DataError(f"{key!r} holds {column.null_count:,} nulls: expected a number everywhere")
    _check_type(key, column.type)
    dtype = np.dtype(_FLOATS.get(str(column.type), str(column.type)))  # not to_pandas_dtype(), which may need pandas
    start, count = column.offset, len(column)
    if count == 0:
        return np.empty(0, dtype)
    stored = column.buffers()[1]  # not to_numpy(), which imports all of pandas
    if dtype.kind == "b":
        return np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")[start : start + count].astype(bool)
    return np.frombuffer(stored, dtype, count, start * dtype.itemsize)


def write(rows: RowSource, target: str | os.PathLike[str]) -> None:
    """Write rows to a file, with one row group for each chunk and with zstd compression.

    Dictionary encoding is off, because values of floats rarely repeat.
    """
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
    """Return the Arrow type of a column."""
    pyarrow, _ = libraries("writing Parquet")
    scalar = pyarrow.from_numpy_dtype(column.dtype.newbyteorder("="))
    if not column.shape:
        return scalar
    return pyarrow.list_(pyarrow.field("element", scalar, nullable=False), column.shape[0])


def _to_arrow(column: Column, array: Array, schema: Any) -> Any:
    """Convert an array to an Arrow array of the type of `column`."""
    pyarrow, _ = libraries("writing Parquet")
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    # Built from buffers, because pyarrow.array() imports all of pandas, only to check that the array is not a Series.
    stored = np.packbits(native, bitorder="little") if native.dtype == bool else native
    flat = pyarrow.Array.from_buffers(
        pyarrow.from_numpy_dtype(native.dtype), len(native), [None, pyarrow.py_buffer(stored)]
    )
    if not column.shape:
        return flat
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.field(column.name).type)


def libraries(purpose: str) -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet. If they are missing, the error names `purpose`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", purpose) from None
    return pyarrow, pyarrow.parquet
