"""How long a run has taken, in all its lives, and what for; and when it is time for a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from synther.folder import read_object, write_object

_CHECKPOINT_SHARE = 0.05
"""Of the time, at most, that goes into checkpoints."""


class Clock:
    """Goes on from what was saved at `path`, or from the `least` that the run is known to have taken."""

    def __init__(self, path: Path, least: float) -> None:
        self.path = path
        before = read_object(path) if path.exists() else {"seconds": 0.0, "waiting": 0.0, "checkpoints": 0.0}
        self._began = time.monotonic() - max(before.pop("seconds"), least)
        self._parts: dict[str, float] = before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Time that is no training: waiting for evaluations, or writing checkpoints."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(part, time.monotonic() - began)

    def add(self, part: str, seconds: float) -> None:
        """Count what takes too little time, too often, to be stopped for."""
        self._parts[part] = self._parts.get(part, 0.0) + seconds

    def parts(self) -> dict[str, float]:
        """Of the seconds: those of training, and the others."""
        return {"training": self.seconds - sum(self._parts.values()), **self._parts}

    def save(self) -> None:
        write_object(self.path, {"seconds": self.seconds, **self._parts})


class Checkpoints:
    """Of a run, at least so many seconds after one another."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._least, self._pause = clock, seconds, seconds
        self._written = time.monotonic()

    def are_due(self) -> bool:
        return time.monotonic() - self._written >= self._pause

    def write(self, save: Callable[[], None]) -> None:
        """Save, and the clock with it."""
        began = time.monotonic()
        with self._clock.counting("checkpoints"):
            save()
        self._clock.save()
        self._written = time.monotonic()
        self._pause = max(self._least, (self._written - began) / _CHECKPOINT_SHARE)
