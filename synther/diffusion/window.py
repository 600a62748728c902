"""A fit on more rows than memory holds: a window of them is there, and its oldest rows are replaced now and then.

Rows come in an endless order, such as `synther.formats.stream.Order`, of which position p is in place p modulo the size
of the window. Which positions are there follows from the number of a round alone, so a fit that was killed finds the
same rows again. The next rows are read in a thread while the network learns from the present ones.
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
"""How often a row is drawn, on average, before another takes its place."""
_TURNS = 16
"""In which a window is replaced."""

Read = Callable[[int, int], tuple[Tensor, Tensor]]
"""read(start, stop): the rows at these positions of the order (n, D), and how many times as often as others each is
drawn (n,)."""


@dataclass(frozen=True)
class Pace:
    """How many rows are in a window, and how many of them are replaced after how many rounds."""

    rows: int
    replaced: int
    rounds: int
    turns: int
    """Of the whole fit: in each of them the window is another."""

    @classmethod
    def of(cls, config: FitConfig, total: int, fitted: int) -> Pace:
        """For a fit on `total` rows, of which `fitted` are not held out. No more rows are read than the fit draws."""
        a_round = config.batch_for(total) * config.ema_every
        rows = min(config.window_rows, fitted, config.steps * config.batch_for(total))
        rounds = max(1, DRAWS * rows // (_TURNS * a_round))
        replaced = min(rows, -(-rounds * a_round // DRAWS)) if rows < fitted else 0
        turns = -(-config.steps // (config.ema_every * rounds))
        return cls(rows, replaced, rounds, turns)


class Window:
    """Some of many rows, on a device."""

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
        """`total` is the number of all rows. `identity` tells them from other rows. `read` never gives the rows
        `held_out` (H, D)."""
        self.held_out, self.total, self.device = held_out, total, device
        self.identity = f"{identity} {pace}"
        self.rows = torch.zeros(pace.rows, columns, device=device)
        self._read, self._pace = read, pace
        self._times = torch.zeros(pace.rows, dtype=torch.int64, device=device)
        self._fitted = torch.empty(0, dtype=torch.int64, device=device)
        self._turn, self._filled = -1, 0
        self._next: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def at(self, number: int) -> Tensor:
        """Make the rows those of round `number`. Returns the places to draw from, some of them several times. (M,)"""
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
                raise DataError("none of the rows in the window can be learned from: fit on other rows, or a wider one")
            if pace.replaced and turn + 1 < pace.turns:
                self._next = self._filled, _begun(self._read, self._filled, self._filled + pace.replaced)
        return self._fitted

    def _taken(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The rows of these positions, which may have been read already."""
        ahead, self._next = self._next, None
        if ahead is not None:
            found = ahead[1].result()
            if ahead[0] == start and len(found[0]) == stop - start:
                return found
        return self._read(start, stop)

    def _put(self, start: int, rows: Tensor, times: Tensor) -> None:
        done, size = 0, self._pace.rows
        while done < len(rows):
            place = (start + done) % size
            count = min(len(rows) - done, size - place)
            self.rows[place : place + count] = rows[done : done + count].to(self.device)
            self._times[place : place + count] = times[done : done + count].to(self.device)
            done += count


def _begun(read: Read, start: int, stop: int) -> Future[tuple[Tensor, Tensor]]:
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(read, start, stop)
    pool.shutdown(wait=False)  # the thread ends with its work
    return begun
