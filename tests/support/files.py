"""Files of rows as another program would write them, and the folder of an online run, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet

from synther import Transitions, write
from synther.experiments.results import Result


def store(path: Path, arrays: dict[str, Any]) -> Path:
    """Write arrays under the names given, but for None, in the format of the suffix: npz, HDF5 or Parquet."""
    arrays = {key: array for key, array in arrays.items() if array is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix in (".hdf5", ".h5"):
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    else:
        columns = {key: list(array) if array.ndim == 2 else array for key, array in arrays.items()}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def write_folder(folder: Path, rows: Transitions, file_rows: int, group_rows: int) -> Path:
    """Files of so many rows, in row groups of so many."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(rows.chunks(file_rows)):
        path = folder / f"part-{number}.parquet"
        write(part, path)
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(path), path, row_group_size=group_rows)
    return folder


def run_folder(folder: Path, rows: Transitions) -> Path:
    """The files that `synther collect` reads."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"env_id": rows.env_id, "learning_starts": 5, "steps": len(rows)}))
    (folder / "result.json").write_text(json.dumps(Result(len(rows), 1.0, {}, unit="env_steps").to_json()))
    write(rows, folder / "replay.npz")
    return folder
