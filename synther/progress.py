"""How long work reports itself: one interface, drawn on stderr by whoever runs the work.

The library calls `Progress.phase(name, total)` and advances what it gets; it never prints.
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
    def advance(self, amount: int, note: str = "") -> None:
        """Report `amount` more units done, with a short figure such as the current loss."""


@runtime_checkable
class Measuring(Phase, Protocol):
    """A phase that also wants to know what is measured."""

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """Report figures after `step` units, such as the held-out loss."""


def measured(phase: Phase, step: int, figures: Mapping[str, float]) -> None:
    """Report figures to a phase that wants to know them."""
    if isinstance(phase, Measuring):
        phase.measured(step, figures)


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
    """A line at the start of a phase, at every tenth of it, and at least every `pause` seconds: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, pause: float = 30.0) -> None:
        self.stream, self.pause = stream or sys.stderr, pause

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        if start < total:
            where = f"resumes at {start:,} of {total:,}" if start else f"0 % of {total:,}"
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
        if tenth <= self.tenth and now - self.latest < self.owner.pause:
            return
        share = 10 * tenth if tenth > self.tenth else 100 * self.done // max(self.total, 1)
        self.tenth, self.latest = tenth, now
        seconds = now - self.began
        left = seconds * (self.total - self.done) / max(self.done - self.start, 1)
        words = f"{self.name}: {share} % of {self.total:,}, {seconds:.1f} s"
        words += f", about {left:.0f} s left" if self.done < self.total and left >= 1 else ""
        print(words + (f"  {note}" if note else ""), file=self.owner.stream, flush=True)


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


class Notebook:
    """A bar a phase, below the cell of a notebook. It needs no widgets."""

    pause = 0.2
    """Seconds between two pictures of a bar."""

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
    """Whether this is a kernel of Jupyter, where stderr is no terminal but pictures can be shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def on_stderr() -> Progress:
    """Bars on a terminal and in a notebook, lines elsewhere."""
    if _in_notebook():
        return Notebook()
    return Bars() if sys.stderr.isatty() else Lines()


def resolve(progress: Progress | bool) -> Progress:
    """What a caller's `progress=` argument means: an object, or True for stderr and False for silence."""
    if isinstance(progress, bool):
        return on_stderr() if progress else Silent()
    return progress
