"""Files of rows as another program would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet


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
