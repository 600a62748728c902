"""Fit on more rows than memory holds: a window of rows is in memory, and its oldest rows are replaced now and then.

Rows are read in an endless order, for example `synther.formats.stream.Order`. The row at position p of this order is
stored at index p modulo the size of the window. The positions in the window depend only on the number of the round, so
a fit that was killed resumes with the same rows. The next rows are read in a thread while the network learns from the
present ones.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from synther.diffusion.config import FitConfig
from synther.errors import DataError

DRAWS = 4
"""How many times a row is drawn on average before another row replaces it."""
_TURNS = 16
"""Number of turns in which all rows of a window are replaced. Each turn replaces about a sixteenth of them."""

Read = Callable[[int, int], tuple[Tensor, Tensor]]
"""A function read(start, stop) that returns the rows at these positions of the order (n, D), and how many times as
often as other rows each of them is drawn (n,)."""


@dataclass(frozen=True)
class Pace:
    """The size of a window, and how fast its rows are replaced. In each *turn* the window holds other rows."""

    rows: int
    """Number of rows in the window."""
    replaced: int
    """Number of rows that are replaced at the beginning of a turn. 0 if the window holds all rows of the fit."""
    rounds: int
    """Number of rounds in a turn."""
    turns: int
    """Number of turns in the whole fit."""

    @classmethod
    def of(cls, config: FitConfig, total: int, fitted: int) -> Pace:
        """Return the pace for a fit on `total` rows, of which `fitted` rows are not held out.

        The window is never larger than the number of rows that the fit draws.
        """
        a_round = config.batch_for(total) * config.ema_every
        rows = min(config.window_rows, fitted, config.steps * config.batch_for(total))
        rounds = max(1, DRAWS * rows // (_TURNS * a_round))
        replaced = min(rows, -(-rounds * a_round // DRAWS)) if rows < fitted else 0
        turns = -(-config.steps // (config.ema_every * rounds))
        return cls(rows, replaced, rounds, turns)


class Window:
    """The part of the rows that is in memory, on a device."""

    def __init__(
        self,
        read: Read,
        pace: Pace,
        held_out: Tensor | None,
        *,
        columns: int,
        total: int,
        identity: str,
        device: torch.device,
    ) -> None:
        """`total` is the number of all rows, and `identity` distinguishes them from other data (for checkpoints).
        `read` never returns the held-out rows `held_out` (H, D)."""
        self.held_out, self.total, self.device = held_out, total, device
        self.identity = f"{identity} {pace}"
        self.rows = torch.zeros(pace.rows, columns, device=device)
        self._read, self._pace = read, pace
        self._times = torch.zeros(pace.rows, dtype=torch.int64, device=device)
        self._fitted = torch.empty(0, dtype=torch.int64, device=device)
        self._turn, self._filled = -1, 0
        self._next: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def at(self, number: int) -> Tensor:
        """Fill the window with the rows of round `number`. Return the indices to draw from (M,). A row that is drawn
        more often than others appears several times."""
        pace, turn = self._pace, number // self._pace.rounds
        if turn != self._turn:
            first = turn * pace.replaced
            start = max(first, self._filled) if turn > self._turn else first
            step = pace.replaced or pace.rows
            for low in range(start, first + pace.rows, step):
                self._put(low, *self._taken(low, min(low + step, first + pace.rows)))
            self._turn, self._filled = turn, first + pace.rows
            self._fitted = torch.arange(pace.rows, device=self.device).repeat_interleave(self._times)
            if not len(self._fitted):
                raise DataError(
                    f"all {pace.rows} rows in the window are drawn 0 times, because they cannot be learned from: "
                    "raise fit.window_rows, or fit on other rows"
                )
            if pace.replaced and turn + 1 < pace.turns:
                self._next = self._filled, _begun(self._read, self._filled, self._filled + pace.replaced)
        return self._fitted

    def _taken(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the rows at these positions and their repeats. The thread may have read them already."""
        ahead, self._next = self._next, None
        if ahead is not None:
            ready = ahead[1].result()
            if ahead[0] == start and len(ready[0]) == stop - start:
                return ready
        return self._read(start, stop)

    def _put(self, start: int, rows: Tensor, times: Tensor) -> None:
        """Store the rows that begin at position `start` of the order, and wrap around at the end of the window."""
        done, size = 0, self._pace.rows
        while done < len(rows):
            place = (start + done) % size
            count = min(len(rows) - done, size - place)
            self.rows[place : place + count] = rows[done : done + count].to(self.device)
            self._times[place : place + count] = times[done : done + count].to(self.device)
            done += count


def _begun(read: Read, start: int, stop: int) -> Future[tuple[Tensor, Tensor]]:
    """Start to read these positions in a thread."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(read, start, stop)
    pool.shutdown(wait=False)  # the thread ends when it has read the rows
    return begun
