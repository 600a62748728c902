"""Rows on their way to a file: whole shards in a folder beside it, so that work can stop at any moment."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Array, Transitions
from synther.durable import replacing, writing_to
from synther.errors import FormatError

_log = logging.getLogger(__name__)


class Spool:
    """A folder of numbered shards that belong together by `identity`; one with another identity is emptied."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        manifest = folder / "manifest.json"
        wanted = json.dumps(identity, sort_keys=True)
        if folder.exists() and not manifest.exists() and not _only_ours(folder):
            raise FormatError(f"{folder} is in the way and no work of SynthER's: move it, or choose another name")
        if not manifest.exists() or manifest.read_text() != wanted:
            if manifest.exists():
                _log.info("discarding %s, which belongs to another model or other options", folder)
            shutil.rmtree(folder, ignore_errors=True)
            with writing_to(folder):
                folder.mkdir(parents=True)
            with replacing(manifest) as beside:
                beside.write_text(wanted)
        for leftover in folder.glob(".*"):  # of a writer that was killed
            leftover.unlink()
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
        file = self._file(self.count)
        with writing_to(file), replacing(file, tidy=False) as beside:
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


def _only_ours(folder: Path) -> bool:
    """Whether all that lies there may be what a process that was killed left of a spool, or nothing."""
    return folder.is_dir() and all(
        re.fullmatch(r"\d{6,}\.npz|\..*\.writing\..*", file.name) for file in folder.iterdir()
    )


class Unspooled:
    """The rows of a spool on their way into a file: `advance` hears how many were taken, the first `keep` are kept.

    `dress` makes rows of a shard's arrays.
    """

    def __init__(
        self,
        spool: Spool,
        dress: Callable[[Mapping[str, Array]], Transitions],
        advance: Callable[[int], None],
        keep: int,
    ) -> None:
        self.spool, self.dress, self.advance, self.keep = spool, dress, advance, keep
        self.taken = 0
        self.kept: list[Transitions] = []

    def __len__(self) -> int:
        return len(self.spool)

    def chunks(self, rows: int) -> Iterator[Transitions]:
        """The shards, whatever chunk size is asked for: they were cut for that."""
        start = 0
        for arrays in self.spool.shards():
            chunk = self.dress(arrays)
            yield chunk
            if start == self.taken:  # some formats go through the rows once for each field
                if start < self.keep:
                    self.kept.append(chunk[: self.keep - start])
                self.taken += len(chunk)
                self.advance(len(chunk))
            start += len(chunk)

    def first(self) -> Transitions:
        return Transitions.concatenate(self.kept)
