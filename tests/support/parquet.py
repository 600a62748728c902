"""Folders of Parquet files with row groups of a given size."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from synther import Transitions, write


def write_folder(folder: Path, rows: Transitions, file_rows: int, group_rows: int) -> Path:
    """Files of so many rows, in row groups of so many."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(rows.chunks(file_rows)):
        path = folder / f"part-{number}.parquet"
        write(part, path)
        pq.write_table(pq.read_table(path), path, row_group_size=group_rows)
    return folder
