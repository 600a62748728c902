"""Fit on rows that stay on disk, because they do not fit into memory.

A random sample of the rows determines everything but the network: column kinds, scalings, tables. The network learns
from a window: some of the rows are in memory, and are replaced little by little (diffusion/window.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.diffusion.config import FitConfig
from synther.diffusion.fit import split_places
from synther.diffusion.window import Pace, Window
from synther.formats.stream import PIECES, SAMPLE_ROWS, Order, Sample, StoredRows
from synther.synthesizer.row_conditions import compute_more_conditions
from synther.synthesizer.together import Task, with_conditions

log = logging.getLogger(__name__)

FEWEST_SAMPLED = 100_000
"""Minimum number of rows in the sample, even if the window is smaller. With scalings from only 10,000 rows, the model
loses a nat per row."""

_Seen = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Rows as the network sees them (N, D), and how many times each of them takes part in the fit (N,)."""


def sample_of(stored: StoredRows, config: FitConfig, seed: int) -> Sample:
    """Return a random sample of the rows. Everything but the network is learned from it."""
    return stored.sample(min(SAMPLE_ROWS, max(config.window_rows, FEWEST_SAMPLED)), seed)


def with_window(task: Task, stored: StoredRows, sample: Sample, condition: Any, config: FitConfig, seed: int) -> Task:
    """Extend the task of a fit on the `sample` to a fit on all `stored` rows. The held-out rows are from the sample."""
    config, seen = task.shortened(config), with_conditions(task)
    _, chosen = split_places(len(seen), config.holdout, seed)
    pace = Pace.of(config, len(stored), len(stored) - len(chosen))
    order = stored.order(max(1, pace.rows // PIECES), seed, sample.places[chosen.numpy()])
    digest = hashlib.sha256(seen.cpu().numpy().data).hexdigest()
    window = Window(
        _Reader(task, order, condition),
        pace,
        seen[chosen.to(seen.device)] if len(chosen) else None,
        columns=seen.shape[1],
        total=len(stored),
        identity=f"{stored.fingerprint} {digest}",
        device=seen.device,
    )
    figures = f"{len(stored):,}", len(stored.files.paths), f"{pace.rows:,}", f"{len(sample.rows):,}"
    log.info("streaming %s rows of %d files: %s in memory at a time, columns analysed on %s random rows", *figures)
    return replace(task, stored=stored, window=window, rare=None)


@dataclass
class _Reader:
    """Reads rows for a `Window`: converts the rows of an endless order to the matrix that the network sees."""

    task: Task
    order: Order
    condition: Any
    has_warned: bool = False
    latest: tuple[int, _Seen] | None = None
    """The piece that was read last, by number. It is kept because a read often ends in the middle of a piece, and the
    next read begins there."""

    def __call__(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read rows. See `diffusion.window.Read`. Rows that do not fit the layout are drawn 0 times."""
        parts = [(seen[part], times[part]) for (seen, times), part in self._pieces(start, stop)]
        seen, times = (np.concatenate(each) for each in zip(*parts, strict=True))
        return torch.from_numpy(seen), torch.from_numpy(times)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[_Seen, slice]]:
        """Yield the pieces that contain these positions of the order, and the rows of each piece to take."""
        for number, part in self.order.parts(start, stop):
            if self.latest is None or self.latest[0] != number:
                self.latest = number, self._seen(*self.order.read(number))
            yield self.latest[1], part

    def _seen(self, rows: Transitions, first: NDArray[np.bool_] | None) -> _Seen:
        """Convert a whole piece, so that the result for a row does not depend on where a read begins. `first` marks
        episode starts."""
        prepared, conditions = self.task.prepared, self.task.conditions
        fits = prepared.layout.fitting(rows)
        matrix = np.zeros((len(rows), prepared.layout.width), np.float32)
        if fits.any():
            with np.errstate(over="ignore"):
                matrix[fits] = prepared.scaler.transform(prepared.layout.pack(rows if fits.all() else rows[fits]))
            fits &= np.isfinite(matrix).all(1)
            matrix[~fits] = 0
        if not fits.all() and not self.has_warned:
            self.has_warned = True
            advice = "raise fit.window_rows for a larger sample, or add observation and action spaces to the rows"
            log.warning(
                "some rows have values that no row of the sample has: they are left out. If you need them, %s", advice
            )
        times = np.ones(len(rows), np.int64)
        if conditions is not None and conditions.conditions.count:
            more = compute_more_conditions(conditions.conditions, rows, self.condition, first)
            matrix = np.concatenate([matrix, more.columns], axis=1)
            times = times if more.repeats is None else more.repeats
        return matrix, times * fits
