"""Report the progress of long work through one small interface.

The library calls `Progress.phase(name, total)` and advances the phase. It never prints. The caller chooses what is
shown: `Bars` on a terminal, `Lines` in log files, `Notebook` in Jupyter, or `Silent`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Phase(Protocol):
    """A part of the work with a known number of units, such as the steps of a fit."""

    def advance(self, amount: int, note: str = "") -> None:
        """Report that `amount` more units are done. `note` is a short figure, such as the current loss."""


@runtime_checkable
class Measuring(Phase, Protocol):
    """A phase that also receives measurements."""

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """Report figures after `step` units, such as the held-out loss."""


def measured(phase: Phase, step: int, figures: Mapping[str, float]) -> None:
    """Report figures to `phase` if it is `Measuring`."""
    if isinstance(phase, Measuring):
        phase.measured(step, figures)


class Progress(Protocol):
    """Shows the progress of work that consists of phases."""

    def phase(self, name: str, total: int, start: int = 0) -> AbstractContextManager[Phase]:
        """Open a phase of `total` units. An earlier run has already done `start` of them."""


class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        yield _NoPhase()


class _NoPhase:
    def advance(self, amount: int, note: str = "") -> None:
        pass


class Lines:
    """Prints a line at the start and at the end of a phase, and at every tenth of it. Lines between the first and the
    last are at least `least` and at most `pause` seconds apart, so a short phase has two lines."""

    def __init__(self, stream: TextIO | None = None, pause: float = 30.0, least: float = 1.0) -> None:
        self.stream, self.pause, self.least = stream or sys.stderr, pause, least

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        if start < total:
            where = f"continues at {start:,} of {total:,}" if start else f"0 % of {total:,}"
            print(f"{name}: {where}", file=self.stream, flush=True)
        yield _LinePhase(self, name, total, start)


class _LinePhase:
    def __init__(self, owner: Lines, name: str, total: int, start: int) -> None:
        self.owner, self.name, self.total, self.start, self.done = owner, name, total, start, start
        self.began = self.latest = time.monotonic()
        self.tenth = 10 * start // max(total, 1)

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        tenth, now = 10 * self.done // max(self.total, 1), time.monotonic()
        pause = self.owner.least if tenth > self.tenth else self.owner.pause
        if now - self.latest < pause and not self.tenth < 10 <= tenth:
            return
        share = 10 * tenth if tenth > self.tenth else 100 * self.done // max(self.total, 1)
        self.tenth, self.latest = tenth, now
        seconds = now - self.began
        left = seconds * (self.total - self.done) / max(self.done - self.start, 1)
        words = f"{self.name}: {share} % of {self.total:,}, {seconds:.1f} s"
        words += f", about {left:.0f} s left" if self.done < self.total and left >= 1 else ""
        print(words + (f"  {note}" if note else ""), file=self.owner.stream, flush=True)


class Bars:
    """Draws one bar per phase on a terminal. Bars of phases that are open at the same time are below each other."""

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
            if len(bars.task_ids) > 1:  # print the finished bar above the others
                bars.console.print(bars.make_tasks_table([one for one in bars.tasks if one.id == task]))
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


class Notebook:
    """Draws one bar per phase below the cell of a notebook. It needs no widgets."""

    pause = 0.2
    """Shortest time between two updates of a bar, in seconds."""

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        bar = _NotebookPhase(name, total, start)
        try:
            yield bar
        finally:
            bar.draw()


class _NotebookPhase:
    def __init__(self, name: str, total: int, start: int) -> None:
        from IPython.display import display

        self.name, self.total, self.start, self.done, self.note = name, total, start, start, ""
        self.began = self.drawn = time.monotonic()
        self.shown: Any = display(self._picture(), display_id=True)

    def advance(self, amount: int, note: str = "") -> None:
        self.done, self.note = self.done + amount, note
        if time.monotonic() - self.drawn > Notebook.pause:
            self.draw()

    def draw(self) -> None:
        self.drawn = time.monotonic()
        self.shown.update(self._picture())

    def _picture(self) -> Any:
        from html import escape

        from IPython.display import HTML

        seconds = time.monotonic() - self.began
        left = seconds * (self.total - self.done) / max(self.done - self.start, 1)
        words = f"{self.done:,} of {self.total:,}, {seconds:.0f} s"
        words += f", {left:.0f} s left" if self.start < self.done < self.total else ""
        words = escape(f"{words}  {self.note}")
        return HTML(f'{escape(self.name)} <progress value="{self.done}" max="{self.total}"></progress> {words}')


def _in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel. There stderr is not a terminal, but HTML can be shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def on_stderr() -> Progress:
    """Return bars on a terminal and in a notebook, and lines elsewhere."""
    if _in_notebook():
        return Notebook()
    return Bars() if sys.stderr.isatty() else Lines()


def resolve(progress: Progress | bool) -> Progress:
    """Return the progress object for the argument `progress=`: True shows progress on stderr, False shows nothing."""
    if isinstance(progress, bool):
        return on_stderr() if progress else Silent()
    return progress


def counted(count: int, noun: str) -> str:
    """Return a count of things in words: "1 seed", "6 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
