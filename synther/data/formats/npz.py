"""NumPy archives: flat arrays under the usual names, or the compact form that stores each observation once.

The compact form holds `observations` (one row more than steps for each episode), `actions`, `rewards`,
`episode_lengths`, `terminated` (one entry an episode) and perhaps `env_id`.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.formats import metadata
from synther.data.formats.episodes import flags, paired
from synther.data.formats.reading import keys_of_fields, reading, settled
from synther.data.formats.writing import Stream
from synther.data.transitions import Array, RowSource, Transitions
from synther.durable import replacing
from synther.errors import DataError, FormatError

_COMPACT = ("observations", "actions", "rewards", "episode_lengths", "terminated")


def read(source: str | os.PathLike[str]) -> Transitions:
    with reading(source, "a NumPy archive (.npz)"):
        if not zipfile.is_zipfile(source):
            size = Path(source).stat().st_size
            raise FormatError(f"not a NumPy archive (.npz): {size:,} bytes that are no zip file, or only a part of one")
        with np.load(source, allow_pickle=False) as archive:
            arrays = {key: np.asarray(archive[key]) for key in archive.files}
        known = _known(arrays)
        if "episode_lengths" in arrays:
            return Transitions.of(_expanded(arrays), **known)
        keys = keys_of_fields(arrays, "an archive")
        fields = settled({field: arrays[key] for field, key in keys.items()}, keys)
        return Transitions.of(paired(fields), **known)


def _known(arrays: dict[str, Array]) -> dict[str, Any]:
    text, env_id = arrays.pop(metadata.KEY, None), arrays.pop("env_id", None)
    known = metadata.load(None if text is None else str(text))
    if env_id is not None and env_id.size == 1 and not known.get("env_id"):
        known["env_id"] = str(env_id.item())
    return known


def _expanded(arrays: dict[str, Array]) -> dict[str, Array]:
    """Compact arrays to fields of rows."""
    missing, unknown = set(_COMPACT) - set(arrays), set(arrays) - set(_COMPACT)
    if missing or unknown:
        raise DataError(
            f"an archive with episode_lengths holds {', '.join(_COMPACT)}; "
            f"missing {sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )
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
