"""A progress display that can be asked what it was shown."""

from __future__ import annotations

from contextlib import contextmanager


class Watch:
    """A progress display that remembers what it was shown, and may bring the work down."""

    def __init__(self, stop: tuple[str, int] = ("", 0), at_every=lambda: None) -> None:
        self.stop, self.at_every = stop, at_every
        self.phases: list[list] = []  # name, total, start, done

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0):
        self.phases.append([name, total, start, start])
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.at_every()
        self.phases[-1][3] += amount
        name, _, _, done = self.phases[-1]
        if name == self.stop[0] and done >= self.stop[1]:
            raise Stopped


class Stopped(Exception):
    pass
