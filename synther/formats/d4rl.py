"""HDF5 files with D4RL's keys: flat datasets with one row per step.

The keys are `observations`, `actions`, `rewards`, `next_observations`, `terminals` and `timeouts`. Some files of D4RL
have no `next_observations`. Then they are taken from the next row: see `episodes.pair`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from synther.data.transitions import EXTRA, Array, RowSource, Transitions
from synther.durable import replacing
from synther.errors import DataError, FormatError
from synther.formats import metadata
from synther.formats.episodes import check_lengths, pair
from synther.formats.hdf5 import attribute, check_numbers, created, opened
from synther.formats.reading import Rename, keys_of_fields, reading, separate_timeouts
from synther.formats.writing import CHUNK_BYTES, Stream


def read(source: str | os.PathLike[str], rename: Rename | None = None) -> Transitions:
    import h5py

    with reading(source, "an HDF5 file with D4RL's keys"), opened(source) as file:
        if "episode_0" in file:
            raise FormatError(
                "this is the data file of a Minari data set: pass the folder that contains its `data` folder instead"
            )
        keys = keys_of_fields(_keys(file), "an HDF5 file", rename)
        datasets = {field: file[key] for field, key in keys.items()}
        for field, dataset in datasets.items():
            if not isinstance(dataset, h5py.Dataset) or dataset.ndim == 0:
                raise DataError(f"{keys[field]!r} is not an array: expected a dataset with one row per step")
        check_numbers(source, datasets.values())
        read_fields = _read_all if "next_observation" in datasets else _read_paired
        fields = read_fields(datasets, keys, rename)
        return Transitions.of(fields, **_known(file))


def _keys(file: Any) -> list[str]:
    """Return the names of the datasets. Extra columns are in a group of their own, and keep its name as a prefix."""
    import h5py

    group = EXTRA.rstrip("/")
    if not isinstance(file.get(group), h5py.Group):
        return list(file)
    return [*(key for key in file if key != group), *(EXTRA + key for key in file[group])]


def _known(file: Any) -> dict[str, Any]:
    """Return spaces and environment of the rows, as keyword arguments of `Transitions`."""
    known = metadata.load(attribute(file, metadata.KEY))
    env_id = attribute(file, "env_id")
    if isinstance(env_id, str) and not known.get("env_id"):
        known["env_id"] = env_id
    return known


def _read_all(datasets: dict[str, Any], keys: dict[str, str], rename: Rename | None) -> dict[str, Array]:
    return separate_timeouts({field: dataset[()] for field, dataset in datasets.items()}, keys, rename)


def _read_paired(datasets: dict[str, Any], keys: dict[str, str], rename: Rename | None) -> dict[str, Array]:
    """Read a file without next observations, and take them from the next rows.

    The final arrays are filled block by block, so that the observations, which take most of the memory, are not held in
    memory one more time.
    """
    check_lengths(datasets)
    source = datasets["observation"]
    marks = separate_timeouts(
        {name: datasets[name][()] for name in ("terminal", "timeout") if name in datasets}, keys, rename
    )
    pairing = pair(len(source), marks.get("terminal"), marks.get("timeout"))
    kept = len(pairing.row)
    observation = np.empty((kept, *source.shape[1:]), source.dtype)
    following = np.empty_like(observation)
    block_rows = max(1, CHUNK_BYTES * len(source) // max(source.nbytes, 1))
    for start in range(0, len(source), block_rows):
        block = source[start : start + block_rows + 1]  # one more, for the next observation of the block's last row
        rows = slice(*np.searchsorted(pairing.row, (start, start + block_rows)))
        observation[rows] = block[pairing.row[rows] - start]
        following[rows] = block[pairing.following[rows] - start]
    fields = {"observation": observation, "next_observation": following, "timeout": pairing.timeout}
    for name in ("action", "reward", *(name for name in datasets if name.startswith(EXTRA))):
        fields[name] = datasets[name][()][pairing.row]
    if "terminal" in marks:
        fields["terminal"] = marks["terminal"][pairing.row]
    return fields


def write(rows: RowSource, target: str | os.PathLike[str]) -> None:
    """Write rows, contiguous and uncompressed.

    Compression would hardly shrink float rows. Without it, reading and writing are as fast as the disk.
    """
    stream = Stream(rows)
    with replacing(target) as path, created(path) as (file, writing):
        with writing():
            file.attrs[metadata.KEY] = stream.metadata
            if stream.env_id is not None:
                file.attrs["env_id"] = str(stream.env_id)  # h5py does not accept subclasses of str
            datasets = {
                column.name: file.create_dataset(column.key, (stream.rows, *column.shape), column.dtype)
                for column in stream.columns
            }
        for place, arrays in stream.chunks():
            with writing():
                for name, array in arrays.items():
                    datasets[name][place] = array
