"""HDF5 with D4RL's keys: flat datasets, one row a step.

`observations`, `actions`, `rewards`, `next_observations`, `terminals`, `timeouts`. Some of D4RL's files leave out
`next_observations`; see `episodes.pair` for what becomes of them.
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
from synther.formats.reading import Rename, keys_of_fields, reading, settled
from synther.formats.writing import CHUNK_BYTES, Stream


def read(source: str | os.PathLike[str], rename: Rename | None = None) -> Transitions:
    import h5py

    with reading(source, "an HDF5 file with D4RL's keys"), opened(source) as file:
        if "episode_0" in file:
            raise FormatError(
                "the data file of a Minari data set: pass the folder that holds its `data` folder instead"
            )
        keys = keys_of_fields(_keys(file), "an HDF5 file", rename)
        datasets = {field: file[key] for field, key in keys.items()}
        for field, dataset in datasets.items():
            if not isinstance(dataset, h5py.Dataset) or dataset.ndim == 0:
                raise DataError(f"{keys[field]!r} is no array: expected a dataset with one row a step")
        check_numbers(source, datasets.values())
        arranged = _whole if "next_observation" in datasets else _paired
        fields = arranged(datasets, keys, rename)
        return Transitions.of(fields, **_known(file))


def _keys(file: Any) -> list[str]:
    """Names of the datasets; extra columns are in a group of their own."""
    import h5py

    group = EXTRA.rstrip("/")
    if not isinstance(file.get(group), h5py.Group):
        return list(file)
    return [*(key for key in file if key != group), *(EXTRA + key for key in file[group])]


def _known(file: Any) -> dict[str, Any]:
    known = metadata.load(attribute(file, metadata.KEY))
    env_id = attribute(file, "env_id")
    if isinstance(env_id, str) and not known.get("env_id"):
        known["env_id"] = env_id
    return known


def _whole(datasets: dict[str, Any], keys: dict[str, str], rename: Rename | None) -> dict[str, Array]:
    return settled({field: dataset[()] for field, dataset in datasets.items()}, keys, rename)


def _paired(datasets: dict[str, Any], keys: dict[str, str], rename: Rename | None) -> dict[str, Array]:
    """Final arrays are filled block by block: the observations, often most of the memory, are never held twice over."""
    check_lengths(datasets)
    source = datasets["observation"]
    marks = settled({name: datasets[name][()] for name in ("terminal", "timeout") if name in datasets}, keys, rename)
    pairing = pair(len(source), marks.get("terminal"), marks.get("timeout"))
    kept = len(pairing.row)
    observation = np.empty((kept, *source.shape[1:]), source.dtype)
    following = np.empty_like(observation)
    block_rows = max(1, CHUNK_BYTES * len(source) // max(source.nbytes, 1))
    for start in range(0, len(source), block_rows):
        block = source[start : start + block_rows + 1]  # one more: the observation after the block's last row
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
    """Contiguous and uncompressed: float rows hardly shrink, and both ways run at the speed of the disk."""
    stream = Stream(rows)
    with replacing(target) as path, created(path) as (file, writing):
        with writing():
            file.attrs[metadata.KEY] = stream.metadata
            if stream.env_id is not None:
                file.attrs["env_id"] = str(stream.env_id)  # h5py takes no subclass of it
            datasets = {
                column.name: file.create_dataset(column.key, (stream.rows, *column.shape), column.dtype)
                for column in stream.columns
            }
        for place, arrays in stream.chunks():
            with writing():
                for name, array in arrays.items():
                    datasets[name][place] = array
