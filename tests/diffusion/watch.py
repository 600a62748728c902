"""A progress display that remembers what it was shown, and may bring the work down."""

from __future__ import annotations

import math
from contextlib import contextmanager


class Stopped(Exception):
    pass


class Watch:
    """Raises `Stopped` once so many steps are done, or so many reports have come."""

    def __init__(self, step: float = math.inf, report: float = math.inf) -> None:
        self.step, self.report = step, report
        self.began = self.done = 0
        self.amounts: list[int] = []
        self.notes: list[str] = []

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0):
        self.began = self.done = start
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        self.amounts.append(amount)
        self.notes.append(note)
        if self.done >= self.step or len(self.amounts) >= self.report:
            raise Stopped
