"""What a run writes down while it trains: its log, its clock, when it is measured and when it is saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from synther.errors import SyntherError
from synther.experiments.results import Log, Measurement, Result, Unit
from synther.experiments.tracking import Tracking
from synther.folder import read_object, write_object
from synther.origin import origin

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """After every so many updates, or steps of online runs, and after the last one."""

    every: int
    last: int
    unit: Unit = "updates"

    def includes(self, time: int) -> bool:
        return time == self.last or time % self.every == 0

    def after(self, time: int) -> int:
        """The first one after so many updates."""
        return min(self.last, (time // self.every + 1) * self.every)

    def until(self, time: int) -> list[int]:
        """All that are due after so many updates."""
        last = [time] if time == self.last and time % self.every else []
        return [*range(self.every, time + 1, self.every), *last]


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


class Record:
    """`log.jsonl` and `clock.json` of `folder`, for a training that stands after so many updates, or steps.

    Members are the `seeds` of the first arm, then those of the next. One that has diverged is told once, and the others
    go on; when all have, there is nothing to go on for, unless there are `others`, which may do better. What is due
    just where the training stands may be missing from the log: it is measured again.
    """

    def __init__(
        self,
        folder: Path,
        schedule: Schedule,
        stands: int,
        arms: Sequence[str],
        seeds: Sequence[int],
        tracking: Tracking,
        *,
        others: bool = False,
    ) -> None:
        self.schedule, self.latest = schedule, ""
        self._arms, self._tracking, self._others = arms, tracking, others
        self._names = [f"seed {seed} of arm {arm!r}" for arm in arms for seed in seeds]
        self._lost: set[str] = set()
        again = schedule.includes(stands)
        self._log = Log(folder / "log.jsonl", schedule.until(stands), again=again, unit=schedule.unit)
        self.measurements: Sequence[Measurement] = self._log.measurements
        for measurement in self.measurements:
            self._tell(measurement)
        self.clock = Clock(folder / "clock.json", self.measurements[-1].seconds if self.measurements else 0.0)

    def add(self, measurement: Measurement) -> None:
        self._log.append(measurement)
        self._tell(measurement)

    def has_all(self, stands: int) -> bool:
        """Whether nothing is missing, or under way, of what was due after so many updates."""
        return len(self.measurements) == len(self.schedule.until(stands))

    def result(self, device: torch.device) -> Result:
        """Of a training that has ended, on this machine."""
        parts = self.clock.parts()
        found = Result.of(self.measurements, self._arms, self.schedule.unit)
        return replace(found, seconds=sum(parts.values()), seconds_of=parts, origin=origin(device))

    def _tell(self, measurement: Measurement) -> None:
        """Everybody who wants to know."""
        self._tracking.write(measurement)
        self.latest = _shown(Result.of([measurement], self._arms), self._arms)
        lost = [name for name, gone in zip(self._names, measurement.diverged, strict=True) if gone]
        for name in lost:
            if name not in self._lost:
                log.warning(
                    "%s has diverged after %d updates: no mean counts it from here on", name, measurement.updates
                )
        self._lost.update(lost)
        if not self._others:
            check_alive(measurement.updates, measurement.diverged)


def check_alive(updates: int, diverged: Sequence[bool]) -> None:
    """There is nothing to go on for when all have diverged."""
    if all(diverged):
        raise SyntherError(
            f"all {len(diverged)} members have diverged after {updates:,} updates: their losses or actions are no "
            "finite numbers; lower --agent.learning-rate, or look for absurd values with `synther inspect`"
        )


def _shown(result: Result, arms: Sequence[str]) -> str:
    """The score of each arm, or return, for the display."""
    stands = {arm: result.final(arm) for arm in arms}
    spreads = {arm: s.spread_of_scores or s.spread_of_returns for arm, s in stands.items() if s is not None}
    return "".join(f", {arm} {spread.mean:.1f}" for arm, spread in spreads.items() if spread is not None)
