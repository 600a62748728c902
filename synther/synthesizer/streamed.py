"""Fitting on rows that stay on disk: a sample of them, which describes their columns, and the window to learn from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.conditions import tell_more
from synther.data.transitions import Transitions
from synther.diffusion.config import FitConfig
from synther.diffusion.fit import split_places
from synther.diffusion.window import Pace, Window
from synther.formats.stream import PIECES, SAMPLE_ROWS, Order, Sample, StoredRows
from synther.synthesizer.together import Task, with_conditions

log = logging.getLogger(__name__)

FEWEST_SAMPLED = 100_000
"""Rows of a sample, also for a smaller window: scalings found in 10,000 rows cost a nat a row."""

_Seen = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Rows as the network sees them, and how many times as often as others each is drawn."""


def sample_of(stored: StoredRows, config: FitConfig, seed: int) -> Sample:
    """Rows that columns, scalings, tables and all that is learned beside the network are found out from."""
    return stored.sample(min(SAMPLE_ROWS, max(config.window_rows, FEWEST_SAMPLED)), seed)


def with_window(task: Task, stored: StoredRows, sample: Sample, condition: Any, config: FitConfig, seed: int) -> Task:
    """The task of a fit on all of `stored`, from that of a fit on the `sample`, some of which is held out."""
    config, seen = task.shortened(config), with_conditions(task)
    _, chosen = split_places(len(seen), config.holdout, seed)
    pace = Pace.of(config, len(stored), len(stored) - len(chosen))
    order = stored.order(max(1, pace.rows // PIECES), seed, sample.places[chosen.numpy()])
    found = hashlib.sha256(seen.cpu().numpy().data).hexdigest()
    window = Window(
        _Reader(task, order, condition),
        pace,
        seen[chosen.to(seen.device)] if len(chosen) else None,
        columns=seen.shape[1],
        total=len(stored),
        identity=f"{stored.fingerprint} {found}",
        device=seen.device,
    )
    told = f"{len(stored):,}", len(stored.files.paths), f"{pace.rows:,}", f"{len(sample.rows):,}"
    log.info("streaming %s rows of %d files: %s in memory at a time, columns as in a random %s", *told)
    return replace(task, stored=stored, window=window, payouts=None)


@dataclass
class _Reader:
    """Rows of an endless order as the network sees them."""

    task: Task
    order: Order
    condition: Any
    has_warned: bool = False
    latest: tuple[int, _Seen] | None = None
    """The number of a piece, and its rows: a read ends in the middle of a piece, and the next one begins there."""

    def __call__(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `diffusion.window.Read`. Rows that nothing can be made of are drawn 0 times."""
        parts = [(seen[part], times[part]) for (seen, times), part in self._pieces(start, stop)]
        seen, times = (np.concatenate(each) for each in zip(*parts, strict=True))
        return torch.from_numpy(seen), torch.from_numpy(times)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[_Seen, slice]]:
        for number, part in self.order.parts(start, stop):
            if self.latest is None or self.latest[0] != number:
                self.latest = number, self._seen(*self.order.read(number))
            yield self.latest[1], part

    def _seen(self, rows: Transitions, first: NDArray[np.bool_] | None) -> _Seen:
        """A whole piece, so that what becomes of a row does not depend on where a read begins."""
        prepared, told = self.task.prepared, self.task.told
        fits = prepared.layout.fitting(rows)
        matrix = np.zeros((len(rows), prepared.layout.width), np.float32)
        if fits.any():
            with np.errstate(over="ignore"):
                matrix[fits] = prepared.scaler.transform(prepared.layout.pack(rows if fits.all() else rows[fits]))
            fits &= np.isfinite(matrix).all(1)
            matrix[~fits] = 0
        if not fits.all() and not self.has_warned:
            self.has_warned = True
            advice = "raise fit.window_rows for a larger sample, or give the rows their spaces"
            log.warning(
                "some rows have values that no row of the sample has: they are left out. If it matters, %s", advice
            )
        times = np.ones(len(rows), np.int64)
        if told is not None and told.conditions.count:
            more = tell_more(told.conditions, rows, self.condition, first)
            matrix = np.concatenate([matrix, more.columns], axis=1)
            times = times if more.repeats is None else more.repeats
        return matrix, times * fits
