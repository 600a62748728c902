"""Store the rows that the agents of several seeds collect in an online run, in one file for each segment of the run."""

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
    """Rows of S seeds, oldest first, with a flag in rows at which an episode was truncated.

    A file is never written again, so a checkpoint writes only the rows since the last checkpoint.
    """

    def __init__(self, folder: Path, columns: Columns) -> None:
        self.folder, self.columns = folder, columns
        self.steps = 0
        self._segments: list[Array] = []  # (S, N, width + 1) each; the last column is the truncation flag
        self._unsaved: list[Array] = []  # one step each: (S, width + 1)

    def append(self, rows: Array, timeouts: NDArray[np.bool_]) -> None:
        """Add the rows of one step (S, width), and whether each one truncates its episode (S,)."""
        self._unsaved.append(np.hstack([rows, timeouts[:, None].astype(np.float32)]))
        self.steps += 1

    def cut(self) -> None:
        """Mark the newest row of each seed as truncated, if it is not terminal."""
        newest = self._unsaved[-1]
        newest[:, -1] = 1 - newest[:, self.columns.observation + self.columns.action + 1]

    def save(self) -> None:
        """Write the rows since the last file to a new file."""
        if self._unsaved:
            self._segments.append(np.stack(self._unsaved, axis=1))
            self._unsaved = []
            self._write(self.steps, self._segments[-1])

    def load(self, ends: Sequence[int], seeds: int, replay: Path) -> None:
        """Load the segments that end after the steps `ends`.

        If their files were removed because the run was finished, they are restored from the file `replay`.
        """
        try:
            if replay.exists() and not all(self._file(end).exists() for end in ends):
                self._split(formats.read(replay), ends, seeds)
            self._segments = [load_file(self._file(end))["rows"] for end in ends]
        except (OSError, SafetensorError, KeyError, DataError) as error:
            raise ConfigError(f"{self.folder} has lost rows ({error}): {ANOTHER}") from None
        self.steps = sum(segment.shape[1] for segment in self._segments)
        self._unsaved = []

    def _split(self, rows: Transitions, ends: Sequence[int], seeds: int) -> None:
        """Write the files of all segments again, from `rows` that the method `transitions` returned."""
        steps, rest = divmod(len(rows), seeds)
        if rest or steps < ends[-1] or rows.timeout is None:
            raise DataError(
                f"expected at least {ends[-1]:,} rows of each of {seeds} seeds, with timeouts; got {len(rows):,} rows"
                f"{' without timeouts' if rows.timeout is None else ''}"
            )
        matrix = np.hstack([self.columns.pack(rows), rows.timeout[:, None].astype(np.float32)])
        for begin, end in pairwise((0, *ends)):
            self._write(end, matrix.reshape(seeds, steps, -1)[:, begin:end])

    def rows(self) -> tuple[Array, NDArray[np.bool_]]:
        """Return the rows of every seed (S, N, width), oldest first, and flags (S, N) of truncated episodes."""
        every = self._all()
        return every[..., :-1], every[..., -1] > 0

    def transitions(self, env_id: str) -> Transitions:
        """Return all rows, grouped by seed. Each seed's last row is marked as the end of an episode, see `cut`."""
        if self._unsaved:
            self.cut()
        every = self._all()
        flat = every.reshape(-1, every.shape[2])
        return replace(self.columns.transitions(flat[:, :-1], timeout=flat[:, -1] > 0), env_id=env_id)

    def _all(self) -> Array:
        parts = [*self._segments, *([np.stack(self._unsaved, axis=1)] if self._unsaved else [])]
        return np.concatenate(parts, axis=1)

    def _write(self, end: int, rows: Array) -> None:
        with replacing(self._file(end)) as beside:
            save_file({"rows": np.ascontiguousarray(rows)}, beside)

    def _file(self, end: int) -> Path:
        return self.folder / f"{end:010}.safetensors"
