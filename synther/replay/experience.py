"""What agents of several seeds meet while they act, on disk: a file of rows for each segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from synther import formats
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.errors import ConfigError, DataError
from synther.folder import ANOTHER
from synther.replay.columns import Columns

Array = NDArray[np.float32]


class Experience:
    """Rows of S seeds in order, with a mark where an episode was truncated.

    A file is never written again, so that a checkpoint writes only the rows since the last one.
    """

    def __init__(self, folder: Path, columns: Columns) -> None:
        self.folder, self.columns = folder, columns
        self.steps = 0
        self._segments: list[Array] = []  # (S, N, width + 1): the last column is the mark
        self._since: list[Array] = []  # (S, width + 1) each

    def append(self, rows: Array, timeouts: NDArray[np.bool_]) -> None:
        """Add the rows of one step, (S, width) and (S,)."""
        self._since.append(np.hstack([rows, timeouts[:, None].astype(np.float32)]))
        self.steps += 1

    def cut(self) -> None:
        """Mark the newest rows as truncated, except for terminal ones."""
        newest = self._since[-1]
        newest[:, -1] = 1 - newest[:, self.columns.observation + self.columns.action + 1]

    def save(self) -> None:
        """Write the rows since the last file."""
        if self._since:
            self._segments.append(np.stack(self._since, axis=1))
            self._since = []
            self._write(self.steps, self._segments[-1])

    def load(self, ends: Sequence[int], seeds: int, replay: Path) -> None:
        """Load the segments with these `ends`. A run that was finished has them only in its `replay`."""
        try:
            if replay.exists() and not all(self._file(end).exists() for end in ends):
                self._take_apart(formats.read(replay), ends, seeds)
            self._segments = [load_file(self._file(end))["rows"] for end in ends]
        except (OSError, SafetensorError, KeyError, DataError) as error:
            raise ConfigError(f"{self.folder} has lost rows ({error}): {ANOTHER}") from None
        self.steps = sum(segment.shape[1] for segment in self._segments)
        self._since = []

    def _take_apart(self, every: Transitions, ends: Sequence[int], seeds: int) -> None:
        """Write the files of segments again, from the rows of `transitions`."""
        steps, rest = divmod(len(every), seeds)
        if rest or steps < ends[-1] or every.timeout is None:
            raise DataError(f"{len(every):,} rows are not {ends[-1]:,} of each of {seeds} seeds, or have no time-outs")
        matrix = np.hstack([self.columns.pack(every), every.timeout[:, None].astype(np.float32)])
        for begin, end in pairwise((0, *ends)):
            self._write(end, matrix.reshape(seeds, steps, -1)[:, begin:end])

    def rows(self) -> tuple[Array, NDArray[np.bool_]]:
        """The rows of every seed, oldest first, (S, N, width), and where episodes were truncated, (S, N)."""
        every = self._all()
        return every[..., :-1], every[..., -1] > 0

    def transitions(self, env_id: str) -> Transitions:
        """All rows, seed after seed. The last row of each seed is the end of an episode."""
        if self._since:
            self.cut()
        every = self._all()
        flat = every.reshape(-1, every.shape[2])
        return replace(self.columns.transitions(flat[:, :-1], timeout=flat[:, -1] > 0), env_id=env_id)

    def _all(self) -> Array:
        parts = [*self._segments, *([np.stack(self._since, axis=1)] if self._since else [])]
        return np.concatenate(parts, axis=1)

    def _write(self, end: int, rows: Array) -> None:
        with replacing(self._file(end)) as beside:
            save_file({"rows": np.ascontiguousarray(rows)}, beside)

    def _file(self, end: int) -> Path:
        return self.folder / f"{end:010}.safetensors"
