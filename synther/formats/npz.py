"""NumPy archives (.npz), in two forms: flat arrays under the usual names, or compact.

The compact form stores each observation once. It has `observations` (for each episode one row more than steps),
`actions`, `rewards`, `episode_lengths`, `terminated` (one entry per episode), and optionally `env_id`.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Array, RowSource, Transitions
from synther.durable import replacing
from synther.errors import DataError, FormatError
from synther.formats import metadata
from synther.formats.episodes import flags, paired
from synther.formats.reading import Rename, keys_of_fields, reading, separate_timeouts
from synther.formats.writing import Stream
from synther.schema import check_size

_COMPACT = ("observations", "actions", "rewards", "episode_lengths", "terminated")
"""The arrays of the compact form."""
_ABOUT = (metadata.KEY, "env_id")
"""Arrays with information about all rows."""


def read(source: str | os.PathLike[str], rename: Rename | None = None) -> Transitions:
    with reading(source, "a NumPy archive (.npz)"):
        with Archive.opened(source) as archive:
            about = [key for key in _ABOUT if key in archive.names]
            named = [key for key in archive.names if key not in _ABOUT]
            if "episode_lengths" in named and not rename:
                _check_compact(named)
                arrays = archive.arrays([*about, *named])
                return Transitions.of(_expanded(arrays), **_known(arrays))
            keys = keys_of_fields(named, "an archive", rename)
            arrays = archive.arrays([*about, *keys.values()])
        fields = separate_timeouts({field: arrays[key] for field, key in keys.items()}, keys, rename)
        return Transitions.of(paired(fields), **_known(arrays))


class Archive:
    """The arrays of an archive by name. Sizes are checked before arrays are read, and pickles are refused."""

    def __init__(self, archive: zipfile.ZipFile, stored: int) -> None:
        self._archive, self._stored = archive, stored
        self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        self.names = list(self._members)

    @classmethod
    @contextmanager
    def opened(cls, source: str | os.PathLike[str]) -> Iterator[Archive]:
        """Open an archive for reading."""
        stored = Path(source).stat().st_size
        if not zipfile.is_zipfile(source):
            raise FormatError(
                f"not a NumPy archive (.npz): its {stored:,} bytes are not a zip file, or only a part of one"
            )
        with zipfile.ZipFile(source) as archive:
            yield cls(archive, stored)

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Read the shape and type of an array, without its values. Raise an error if they do not match the file."""
        member = self._members[name]
        with self._archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):  # later versions are only for structured arrays
                raise FormatError(f"{name!r} is not an array of numbers: expected version 1.0 or 2.0 of NumPy's format")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            left = member.file_size - file.tell()
        if dtype.hasobject:
            raise FormatError(
                f"{name!r} holds Python objects: expected numbers. pickles are never loaded, because they run code"
            )
        if math.prod(shape) * dtype.itemsize != left:
            raise FormatError(f"{name!r} declares an array of {shape}, {dtype}, but has {left:,} bytes of values")
        return shape, dtype

    def arrays(self, names: Iterable[str]) -> dict[str, Array]:
        """Read the arrays `names`, and no others."""
        names = list(names)
        for name in names:
            self.header(name)
        check_size(sum(self._members[name].file_size for name in names), self._stored)
        found = {}
        for name in names:
            with self._archive.open(self._members[name]) as file:
                found[name] = np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        return found


def _known(arrays: dict[str, Array]) -> dict[str, Any]:
    """Return spaces and environment of the rows, as keyword arguments of `Transitions`."""
    text, env_id = (_text(arrays[key]) if key in arrays else None for key in _ABOUT)
    known = metadata.load(text)
    if env_id is not None and not known.get("env_id"):
        known["env_id"] = env_id
    return known


def _text(array: Array) -> str:
    """Return the text in an array with one element. Unlike NumPy, this refuses numbers that are not characters."""
    if array.size != 1 or array.dtype.kind not in "US":
        raise FormatError(f"expected an array with one text, got an array of {array.dtype} with shape {array.shape}")
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8 if array.dtype.kind == "S" else np.uint32)
    if array.dtype.kind == "U" and array.dtype.byteorder == (">" if sys.byteorder == "little" else "<"):
        codes = codes.byteswap()
    try:
        return "".join(map(chr, codes.tolist())).rstrip("\0")
    except (ValueError, OverflowError):
        raise FormatError("a text has characters that do not exist in Unicode") from None


def _check_compact(names: list[str]) -> None:
    """Raise an error if the archive does not have exactly the arrays of the compact form."""
    missing, unknown = set(_COMPACT) - set(names), set(names) - set(_COMPACT)
    if missing or unknown:
        raise DataError(
            f"an archive with episode_lengths must hold {', '.join(_COMPACT)}; "
            f"missing {sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )


def _expanded(arrays: dict[str, Array]) -> dict[str, Array]:
    """Convert the arrays of the compact form to fields of rows."""
    observations, lengths = arrays["observations"], arrays["episode_lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(lengths) == 0 or lengths.min() < 1:
        raise DataError("episode_lengths: expected whole numbers of at least 1, one per episode")
    lengths = lengths.astype(np.int64)
    steps, count = int(lengths.sum()), len(lengths)
    for name, expected in (("observations", steps + count), ("actions", steps), ("rewards", steps)):
        if arrays[name].shape[:1] != (expected,):
            raise DataError(
                f"{name} has shape {arrays[name].shape}: expected {expected:,} rows, "
                f"for {count:,} episodes with {steps:,} steps in total"
            )
    terminated = flags("terminated", arrays["terminated"], count)
    first = np.arange(steps) + np.repeat(np.arange(count), lengths)
    last = np.cumsum(lengths) - 1
    terminal, timeout = np.zeros(steps, bool), np.zeros(steps, bool)
    terminal[last], timeout[last] = terminated, ~terminated
    return {
        "observation": observations[first],
        "action": arrays["actions"],
        "reward": arrays["rewards"],
        "next_observation": observations[first + 1],
        "terminal": terminal,
        "timeout": timeout,
    }


def write(rows: RowSource, target: str | os.PathLike[str]) -> None:
    """Write rows in the flat form.

    An archive is written array by array, so `rows` is read once for each field.
    """
    stream = Stream(rows)
    with replacing(target) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(f"{metadata.KEY}.npy", "w") as member:
            np.lib.format.write_array(member, np.array(stream.metadata), allow_pickle=False)
        for column in stream.columns:
            header = {
                "descr": np.lib.format.dtype_to_descr(column.dtype),
                "fortran_order": False,
                "shape": (stream.rows, *column.shape),
            }
            with archive.open(f"{column.key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for _, arrays in stream.chunks():
                    member.write(np.ascontiguousarray(arrays[column.name]).reshape(-1).view(np.uint8).data)
