"""Rows on their way to a file: whole shards in a folder beside it, so that work can stop at any moment and go on later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Transitions
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
        self.rows_done = [len(np.load(file)["reward"]) for file in self._files()]

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.npz"

    def _files(self) -> Iterator[Path]:
        shard = 0
        while self._file(shard).exists():
            yield self._file(shard)
            shard += 1

    @property
    def shards(self) -> int:
        return len(self.rows_done)

    def __len__(self) -> int:
        return sum(self.rows_done)

    def append(self, rows: Transitions) -> None:
        with replacing(self._file(self.shards)) as beside:
            np.savez(beside, **rows.arrays())  # type: ignore[arg-type]
        self.rows_done.append(len(rows))
        self._like = rows[:1]

    def chunks(self, rows: int) -> Iterator[Transitions]:
        """The shards in order, whatever chunk size is asked for: they were cut for that."""
        for file in self._files():
            with np.load(file) as arrays:
                yield Transitions(**dict(arrays))

    def remove(self) -> None:
        shutil.rmtree(self.folder)
