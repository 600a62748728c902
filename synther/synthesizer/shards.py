"""Write generated rows to a folder of Parquet files.

The content of each file depends only on the model, the seed and the number of the file. So any process can write any
file: several processes can write at the same time, and an interrupted run continues with the missing files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from synther import compute, formats
from synther.data.transitions import Array, Transitions
from synther.diffusion.config import DISTILLED
from synther.engines import run_all
from synther.errors import ConfigError, Failed
from synther.folder import ANOTHER, RunFolder
from synther.formats import parquet
from synther.progress import Progress
from synther.synthesizer.picking import Picking
from synther.synthesizer.requests import TEACHER, Requests

if TYPE_CHECKING:
    from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

SHARD_BYTES = 128 << 20
"""Approximate size of the rows of a file in memory."""
SHARES = 64
"""Maximum number of tasks for workers. Each task writes some of the files and loads the model once."""
_MODEL = "model.safetensors"

Dress = Callable[[Mapping[str, Array]], Transitions]
"""A function that converts generated arrays to `Transitions` with spaces: `Synthesizer._dressed`."""


class Workers(TypedDict, total=False):
    """The processes that write the files. See `engines.run_all`. By default this process writes them."""

    engine: Literal["local", "ray"]
    parallel: int
    gpus: float | None
    address: str | None


@dataclass(frozen=True)
class Shards:
    """The files of a folder, and which rows each of them contains."""

    folder: Path
    count: int
    seed: int
    block_rows: int
    blocks: int
    """Number of blocks in a file."""

    @classmethod
    def of(cls, folder: Path, count: int, seed: int, picking: Picking) -> Shards:
        """Divide `count` rows into files of about `SHARD_BYTES`."""
        drawing = picking.drawing
        if picking.choice.keep < 1:
            raise ConfigError(
                "keep: it cannot be used for a folder, because its files are written independently of each other and "
                "keep makes their numbers of rows unknown: write one file (--out rows.parquet), or keep all rows"
            )
        block_rows = drawing.sampler.block_rows
        row_bytes = 4 * len(drawing.model.layout.source_names)
        return cls(folder, count, seed, block_rows, max(1, SHARD_BYTES // (row_bytes * block_rows)))

    @property
    def rows(self) -> int:
        """Number of rows in a file. The last file may have fewer."""
        return self.blocks * self.block_rows

    def __len__(self) -> int:
        return -(-self.count // self.rows)

    def file(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def missing(self, numbers: range | None = None) -> list[int]:
        """Return the numbers of the files that do not exist yet, among all files or `numbers`."""
        numbers = range(len(self)) if numbers is None else numbers
        return [number for number in numbers if not self.file(number).exists()]

    def write(self, numbers: range, picking: Picking, dress: Dress, progress: Progress) -> None:
        """Write the missing ones of the files with these numbers."""
        if picking.drawing.sampler.block_rows != self.block_rows:
            raise ConfigError(
                f"this device ({picking.drawing.sampler.device}) generates blocks of "
                f"{picking.drawing.sampler.block_rows:,} rows, but the folder has blocks of {self.block_rows:,}: all "
                "workers need the same kind of device as the process that started them; --device cpu works everywhere"
            )
        missing = self.missing(numbers)
        end = min(self.count, numbers.stop * self.rows)
        total = end - numbers.start * self.rows
        left = sum(min(self.count, (number + 1) * self.rows) - number * self.rows for number in missing)
        with progress.phase("sample", total, total - left) as phase:
            for start, stop in _runs(missing):
                last_row = min(self.count, stop * self.rows)
                blocks = picking.blocks(last_row, self.seed, start * self.blocks, start * self.rows)
                for number in range(start, stop):
                    gathered = []
                    for block in islice(blocks, self.blocks):
                        gathered.append(block)
                        phase.advance(len(block))
                    formats.write(dress(Transitions.concatenate(gathered).arrays()), self.file(number))


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield each run of consecutive numbers as (start, stop)."""
    for _, pairs in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        yield run[0], run[-1] + 1


@contextmanager
def unfinished(shards: Shards, identity: dict[str, Any]) -> Iterator[bool]:
    """Lock the folder while files are written. Yield whether files are missing.

    Raise an error if the folder contains other rows (with another `identity`) or other files.
    """
    parquet.libraries("writing Parquet")
    folder = shards.folder
    about = RunFolder(folder / parquet.ABOUT, advice=f"choose another --out, or remove {folder}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: {ANOTHER}")
    if not about.begun and folder.exists() and any(path.name != parquet.ABOUT for path in folder.iterdir()):
        raise ConfigError(f"{folder} holds files of something else: choose an empty or a new folder")
    with about.work(identity, lambda: about.result.exists() and not shards.missing()) as is_unfinished:
        if is_unfinished:
            about.result.unlink(missing_ok=True)
            yield True
            for leftover in folder.glob(".*.writing.parquet"):  # from a killed writer, maybe on another machine
                leftover.unlink()
            _model(folder).unlink(missing_ok=True)
            about.finish({"rows": shards.count, "files": len(shards)})
        else:
            yield False


def _model(folder: Path) -> Path:
    """Return the path of the copy of the model that workers load."""
    return folder / parquet.ABOUT / _MODEL


@dataclass(frozen=True)
class _Share:
    """A task of an engine: write some of the files."""

    name: str
    shards: Shards
    numbers: range
    device: str
    precision: compute.Precision
    sampler: str
    requests: Requests

    def execute(self, folder: Path, progress: Progress) -> None:
        from synther.synthesizer import Synthesizer

        model = Synthesizer.load(_model(self.shards.folder), device=self.device, precision=self.precision)
        picking = model._picking(self.sampler, self.requests, progress)
        self.shards.write(self.numbers, picking, model._dressed, progress)

    def done(self, folder: Path) -> bool:
        return not self.shards.missing(self.numbers)


def write_with(
    model: Synthesizer, workers: Workers, shards: Shards, picking: Picking, requests: Requests, progress: Progress
) -> None:
    """Let other processes write the missing files. They load a copy of the model with the sampler and the calibration
    of `picking`."""
    drawing, copy = picking.drawing, _model(shards.folder)
    is_student = drawing.config.kind == DISTILLED
    if is_student:
        model.save(copy)
    else:
        drawing.model.save(copy, replace(model.settings, sampler=drawing.config), drawing.calibration)
    on_cluster = workers.get("engine") == "ray"
    if on_cluster and model.device.type == "cpu" and workers.get("gpus") is None:
        workers = {**workers, "gpus": 0.0}
    device = model.device.type if on_cluster else str(model.device)
    how = device, model.precision, DISTILLED if is_student else TEACHER, requests
    count = min(len(shards), SHARES)
    cuts = [number * len(shards) // count for number in range(count + 1)]
    tasks = [_Share(f"files-{start:06d}", shards, range(start, stop), *how) for start, stop in pairwise(cuts)]
    with nullcontext() if on_cluster else compute.shared_by_processes(model.device):
        outcomes = run_all(tasks, shards.folder / parquet.ABOUT, **workers, progress=progress)
    failed = [f"{outcome.name}: {outcome.error}" for outcome in outcomes if outcome.error is not None]
    if failed:
        raise Failed(
            f"{len(failed)} of {count} tasks failed, the first with: {failed[0]}; the same command continues with the "
            "missing files"
        )
