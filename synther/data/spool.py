"""Rows on their way to a file: whole shards in a folder beside it, so that work can stop at any moment."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Array, Transitions
from synther.durable import replacing


class Spool:
    """A folder of numbered shards that belong together by `identity`; a folder with another identity is emptied."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        manifest = folder / "manifest.json"
        wanted = json.dumps(identity, sort_keys=True)
        if not manifest.exists() or manifest.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with replacing(manifest) as beside:
                beside.write_text(wanted)
        self.rows = [len(arrays["reward"]) for arrays in self.shards()]

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.npz"

    @property
    def count(self) -> int:
        """Whole shards there."""
        return len(self.rows)

    def __len__(self) -> int:
        return sum(self.rows)

    def append(self, rows: Transitions) -> None:
        with replacing(self._file(self.count)) as beside:
            np.savez(beside, **rows.arrays())  # type: ignore[arg-type]
        self.rows.append(len(rows))

    def shards(self) -> Iterator[Mapping[str, Array]]:
        """The arrays of each shard, in order; an array is read when it is asked for."""
        for shard in itertools.count():
            if not self._file(shard).exists():
                return
            with np.load(self._file(shard)) as arrays:
                yield arrays

    def remove(self) -> None:
        shutil.rmtree(self.folder)
