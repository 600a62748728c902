"""Progress displays that remember what they were shown, stop the work, or make it slow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    pass


class Watch:
    """Raises `error` where a phase, or any phase, has done so much, or after so many reports."""

    def __init__(
        self,
        stop: float | tuple[str, float] = math.inf,
        *,
        reports: float = math.inf,
        error: type[BaseException] = Stopped,
        at_every: Callable[[], object] = lambda: None,
    ) -> None:
        self.where, self.place = stop if isinstance(stop, tuple) else ("", stop)
        self.reports, self.error, self.at_every = reports, error, at_every
        self.phases: list[list] = []  # name, total, start, done
        self.amounts: list[int] = []
        self.notes: list[str] = []

    @property
    def names(self) -> list[str]:
        return [phase[0] for phase in self.phases]

    @property
    def start(self) -> int:
        """Of the last phase, as `done`."""
        return self.phases[-1][2]

    @property
    def done(self) -> int:
        return self.phases[-1][3]

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Watch]:
        self.phases.append([name, total, start, start])
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.at_every()
        self.amounts.append(amount)
        self.notes.append(note)
        phase = self.phases[-1]
        phase[3] += amount
        if len(self.amounts) >= self.reports or (self.where in ("", phase[0]) and phase[3] >= self.place):
            raise self.error


class Slow:
    """Progress that takes so many seconds at every report, so that there is time to be killed in."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Slow]:
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        time.sleep(self.seconds)
