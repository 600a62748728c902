"""NumPy archives: flat arrays under the usual names, or the compact form that stores each observation once.

The compact form holds `observations` (one row more than steps for each episode), `actions`, `rewards`,
`episode_lengths`, `terminated` (one entry an episode) and perhaps `env_id`.
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
from synther.formats.reading import Rename, keys_of_fields, reading, settled
from synther.formats.writing import Stream
from synther.schema import check_size

_COMPACT = ("observations", "actions", "rewards", "episode_lengths", "terminated")
_ABOUT = (metadata.KEY, "env_id")
"""What is not about single rows."""


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
        fields = settled({field: arrays[key] for field, key in keys.items()}, keys, rename)
        return Transitions.of(paired(fields), **_known(arrays))


class Archive:
    """The arrays of an archive by name. Their sizes are checked before they are read, and pickles are refused."""

    def __init__(self, archive: zipfile.ZipFile, stored: int) -> None:
        self._archive, self._stored = archive, stored
        self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        self.names = list(self._members)

    @classmethod
    @contextmanager
    def opened(cls, source: str | os.PathLike[str]) -> Iterator[Archive]:
        stored = Path(source).stat().st_size
        if not zipfile.is_zipfile(source):
            raise FormatError(
                f"not a NumPy archive (.npz): {stored:,} bytes that are no zip file, or only a part of one"
            )
        with zipfile.ZipFile(source) as archive:
            yield cls(archive, stored)

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of an array, which is not read."""
        member = self._members[name]
        with self._archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):  # later ones are for names of fields, which numbers have not
                raise FormatError(f"{name!r} is no array of numbers: expected version 1.0 or 2.0 of NumPy's format")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            left = member.file_size - file.tell()
        if dtype.hasobject:
            raise FormatError(f"{name!r} holds Python objects: pickles are never loaded, as loading one runs its code")
        if math.prod(shape) * dtype.itemsize != left:
            raise FormatError(f"{name!r} declares an array of {shape}, {dtype}, but {left:,} bytes are there")
        return shape, dtype

    def arrays(self, names: Iterable[str]) -> dict[str, Array]:
        """These arrays, and no others."""
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
    text, env_id = (_text(arrays[key]) if key in arrays else None for key in _ABOUT)
    known = metadata.load(text)
    if env_id is not None and not known.get("env_id"):
        known["env_id"] = env_id
    return known


def _text(array: Array) -> str:
    """The text in an array of one. Numbers that are no characters are refused, which NumPy does not do."""
    if array.size != 1 or array.dtype.kind not in "US":
        raise FormatError(f"an array of {array.dtype} and shape {array.shape} where text was expected")
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8 if array.dtype.kind == "S" else np.uint32)
    if array.dtype.kind == "U" and array.dtype.byteorder == (">" if sys.byteorder == "little" else "<"):
        codes = codes.byteswap()
    try:
        return "".join(map(chr, codes.tolist())).rstrip("\0")
    except (ValueError, OverflowError):
        raise FormatError("text of characters that do not exist") from None


def _check_compact(names: list[str]) -> None:
    missing, unknown = set(_COMPACT) - set(names), set(names) - set(_COMPACT)
    if missing or unknown:
        raise DataError(
            f"an archive with episode_lengths holds {', '.join(_COMPACT)}; "
            f"missing {sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )


def _expanded(arrays: dict[str, Array]) -> dict[str, Array]:
    """Compact arrays to fields of rows."""
    observations, lengths = arrays["observations"], arrays["episode_lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(lengths) == 0 or lengths.min() < 1:
        raise DataError("episode_lengths: expected whole numbers of 1 or more, one an episode")
    lengths = lengths.astype(np.int64)
    steps, count = int(lengths.sum()), len(lengths)
    for name, expected in (("observations", steps + count), ("actions", steps), ("rewards", steps)):
        if arrays[name].shape[:1] != (expected,):
            raise DataError(
                f"{name} has shape {arrays[name].shape}: "
                f"{count:,} episodes of {steps:,} steps in all need {expected:,} rows"
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
    """The flat form. Members of an archive follow one another, so the rows are gone through once for each field."""
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
