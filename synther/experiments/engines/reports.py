"""What a worker tells its driver while it works, and how the driver shows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count

from synther.progress import Phase, Progress

_PAUSE = 0.2
"""Seconds between two reports of a phase, at least: a display needs no more."""


@dataclass(frozen=True)
class Opened:
    phase: int
    name: str
    total: int
    start: int


@dataclass(frozen=True)
class Advanced:
    phase: int
    amount: int
    note: str


@dataclass(frozen=True)
class Closed:
    phase: int


@dataclass(frozen=True)
class Logged:
    level: int
    text: str


Report = Opened | Advanced | Closed | Logged


class Reported:
    """Progress that is shown elsewhere."""

    def __init__(self, send: Callable[[Report], None]) -> None:
        self.send = send
        self.numbers = count()

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        phase = _ReportedPhase(self.send, next(self.numbers))
        self.send(Opened(phase.number, name, total, start))
        try:
            yield phase
        finally:
            phase.tell()
            self.send(Closed(phase.number))


class _ReportedPhase:
    def __init__(self, send: Callable[[Report], None], number: int) -> None:
        self.send, self.number = send, number
        self.untold, self.note = 0, ""
        self.told = time.monotonic()

    def advance(self, amount: int, note: str = "") -> None:
        self.untold, self.note = self.untold + amount, note
        if time.monotonic() - self.told >= _PAUSE:
            self.tell()

    def tell(self) -> None:
        if self.untold:
            self.send(Advanced(self.number, self.untold, self.note))
            self.untold, self.told = 0, time.monotonic()


class ReportedLog(logging.Handler):
    """Log records that are told elsewhere."""

    def __init__(self, send: Callable[[Report], None]) -> None:
        super().__init__()
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(Logged(record.levelno, self.format(record)))


class Board:
    """Where the driver shows what one worker reports."""

    def __init__(self, name: str, progress: Progress, log: logging.Logger) -> None:
        self.name, self.progress, self.log = name, progress, log
        self.phases: dict[int, tuple[AbstractContextManager[Phase], Phase]] = {}

    def show(self, report: Report) -> None:
        match report:
            case Opened(number, name, total, start):
                phase = self.progress.phase(name, total, start)
                self.phases[number] = phase, phase.__enter__()
            case Advanced(number, amount, note):
                self.phases[number][1].advance(amount, note)
            case Closed(number):
                self.phases.pop(number)[0].__exit__(None, None, None)
            case Logged(level, text):
                self.log.log(level, "%s: %s", self.name, text)

    def clear(self) -> None:
        """Of a worker that reports no more."""
        while self.phases:
            self.phases.popitem()[1][0].__exit__(None, None, None)
