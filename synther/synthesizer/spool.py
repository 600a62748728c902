"""`Spool`: stores rows in numbered shards in a folder, until the output file is written from them.

Work that is interrupted at any moment continues after the last complete shard.
"""

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
    """A folder of numbered shards. A folder that was written with another `identity` is emptied first."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        manifest = folder / "manifest.json"
        wanted = json.dumps(identity, sort_keys=True)
        if folder.exists() and not manifest.exists() and not _only_ours(folder):
            raise FormatError(
                f"{folder} exists and was not created by SynthER: move it, or choose another name for the output"
            )
        if not manifest.exists() or manifest.read_text() != wanted:
            if manifest.exists():
                _log.info("deleting %s, which belongs to another model or other options", folder)
            shutil.rmtree(folder, ignore_errors=True)
            with writing_to(folder):
                folder.mkdir(parents=True)
            with replacing(manifest) as beside:
                beside.write_text(wanted)
        for leftover in folder.glob(".*"):  # temporary files of a process that was killed
            leftover.unlink()
        self.rows = [len(arrays["reward"]) for arrays in self.shards()]

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.npz"

    @property
    def count(self) -> int:
        """Number of complete shards."""
        return len(self.rows)

    def __len__(self) -> int:
        """Return the number of rows in all shards."""
        return sum(self.rows)

    def append(self, rows: Transitions) -> None:
        """Write one more shard."""
        file = self._file(self.count)
        with writing_to(file), replacing(file, tidy=False) as beside:
            np.savez(beside, **rows.arrays())  # type: ignore[arg-type]
        self.rows.append(len(rows))

    def shards(self) -> Iterator[Mapping[str, Array]]:
        """Yield the arrays of each shard, in order. An array is read from disk when it is accessed."""
        for shard in itertools.count():
            if not self._file(shard).exists():
                return
            with np.load(self._file(shard)) as arrays:
                yield arrays

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)


def _only_ours(folder: Path) -> bool:
    """Return whether the folder is empty, or has only files that a killed process may have left of a spool."""
    return folder.is_dir() and all(
        re.fullmatch(r"\d{6,}\.npz|\..*\.writing\..*", file.name) for file in folder.iterdir()
    )


class Unspooled:
    """A row source that reads the rows of a spool, while a file is written from it.

    `dress` makes rows of the arrays of a shard. `advance` is called with the number of rows that were read, for a
    progress bar. The first `keep` rows are kept in memory for `first`.
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
        """Yield the rows shard by shard. The chunk size `rows` is ignored, because shards already have a suitable
        size."""
        start = 0
        for arrays in self.spool.shards():
            chunk = self.dress(arrays)
            yield chunk
            if start == self.taken:  # count rows only once: some formats read all rows once for each field
                if start < self.keep:
                    self.kept.append(chunk[: self.keep - start])
                self.taken += len(chunk)
                self.advance(len(chunk))
            start += len(chunk)

    def first(self) -> Transitions:
        """Return the rows that were kept."""
        return Transitions.concatenate(self.kept)
