"""How long work reports itself: one interface, drawn on stderr by whoever runs the work.

The library calls `Progress.phase(name, total)` and advances what it gets; it never prints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Phase(Protocol):
    def advance(self, amount: int, note: str = "") -> None:
        """Report `amount` more units done, with a short figure such as the current loss."""


class Progress(Protocol):
    def phase(self, name: str, total: int, start: int = 0) -> AbstractContextManager[Phase]:
        """Open a phase of `total` units of which `start` were done by an earlier run."""


class Silent:
    """Reports nothing."""

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        yield _NoPhase()


class _NoPhase:
    def advance(self, amount: int, note: str = "") -> None:
        pass


class Lines:
    """A line at every tenth of a phase: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        yield _LinePhase(self.stream, name, total, start)


class _LinePhase:
    def __init__(self, stream: TextIO, name: str, total: int, start: int) -> None:
        self.stream, self.name, self.total, self.done = stream, name, total, start
        self.began = time.monotonic()
        self.tenth = 10 * start // max(total, 1)

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        tenth = 10 * self.done // max(self.total, 1)
        if tenth > self.tenth:
            self.tenth = tenth
            seconds = time.monotonic() - self.began
            tail = f"  {note}" if note else ""
            print(f"{self.name}: {10 * tenth} % of {self.total:,}, {seconds:.1f} s{tail}", file=self.stream, flush=True)


class Bars:
    """A bar a phase, on a terminal; those of phases that are open at once stand below each other."""

    def __init__(self) -> None:
        self._shown: RichProgress | None = None

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        if self._shown is None:
            self._shown = _bars()
            self._shown.start()
        bars = self._shown
        task = bars.add_task(name, total=total, completed=start, note="")

        class BarPhase:
            def advance(self, amount: int, note: str = "") -> None:
                bars.update(task, advance=amount, note=note)

        try:
            yield BarPhase()
        finally:
            if len(bars.task_ids) > 1:  # it stays, above those that still move
                bars.console.print(bars.make_tasks_table([each for each in bars.tasks if each.id == task]))
                bars.remove_task(task)
            else:
                bars.stop()
                self._shown = None


def _bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return RichProgress(*columns, console=Console(stderr=True))


def on_stderr() -> Progress:
    """Bars on a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


def resolve(progress: Progress | bool) -> Progress:
    """What a caller's `progress=` argument means: an object, or True for stderr and False for silence."""
    if isinstance(progress, bool):
        return on_stderr() if progress else Silent()
    return progress
