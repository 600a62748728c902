"""What a run records while it trains: its log, its clock and trackers; and when it is measured and saved.

Trackers receive the lines of the log, from the first line each time the run is resumed. So they show every measurement
once, whatever happened to the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch

from synther.errors import SyntherError
from synther.experiments.results import Log, Measurement, Result, Unit, by_arm
from synther.experiments.spec import Tracked
from synther.folder import read_object, write_object
from synther.origin import origin
from synther.trackers import Trackers, of_runs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """Measure after every `every` updates (online: steps), and after the last one."""

    every: int
    last: int
    unit: Unit = "updates"

    def includes(self, time: int) -> bool:
        return time == self.last or time % self.every == 0

    def after(self, time: int) -> int:
        """The first measurement after `time`."""
        return min(self.last, (time // self.every + 1) * self.every)

    def until(self, time: int) -> list[int]:
        """All measurements that are due up to `time`."""
        last = [time] if time == self.last and time % self.every else []
        return [*range(self.every, time + 1, self.every), *last]


_CHECKPOINT_SHARE = 0.05
"""Largest share of the time that checkpoints may take."""


class Clock:
    """Seconds of a run. It continues from what was saved at `path`, or from the `least` that the run has taken."""

    def __init__(self, path: Path, least: float) -> None:
        self.path = path
        before = read_object(path, dict[str, float]) if path.exists() else {"waiting": 0.0, "checkpoints": 0.0}
        self._began = time.monotonic() - max(before.pop("seconds", 0.0), least)
        self._parts: dict[str, float] = before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Time that is not training, such as waiting for evaluations or writing checkpoints."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + time.monotonic() - began

    def parts(self) -> dict[str, float]:
        """The seconds of training, and of everything else by name."""
        return {"training": self.seconds - sum(self._parts.values()), **self._parts}

    def save(self) -> None:
        write_object(self.path, {"seconds": self.seconds, **self._parts})


class Checkpoints:
    """When checkpoints are written: at least `seconds` after one another."""

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
    """`log.jsonl`, `clock.json` and trackers of a run in `folder` that stands after `stands` updates, or steps.

    Members are the `seeds` of the first arm, then those of the next. A member that diverges causes one warning, and the
    others continue. When all have diverged, an error is raised, unless there are `others`, which may do better. A
    measurement that is due just where the training stands may be missing from the log: it is repeated.
    """

    def __init__(
        self,
        folder: Path,
        schedule: Schedule,
        stands: int,
        arms: Sequence[str],
        seeds: Sequence[int],
        spec: Tracked,
        *,
        others: bool = False,
    ) -> None:
        self.schedule, self.latest = schedule, ""
        self._arms, self._others = arms, others
        self._names = [f"seed {seed} of arm {arm!r}" for arm in arms for seed in seeds]
        self._lost: set[str] = set()
        again = schedule.includes(stands)
        self._unit = schedule.unit.replace("env_", "")
        told = len(self._names), f"{schedule.last:,}", self._unit, spec.device, f"{schedule.every:,}", folder
        log.info("training %d agents to %s %s on device %s, measured every %s, in %s", *told)
        self._log = Log(folder / "log.jsonl", schedule.until(stands), again=again, unit=schedule.unit)
        self.measurements: Sequence[Measurement] = self._log.measurements
        self.clock = Clock(folder / "clock.json", self.measurements[-1].seconds if self.measurements else 0.0)
        self._refreshes, self._shown = folder / "refreshes.json", 0
        self._trackers = Trackers(folder, spec.tensorboard, spec.wandb, of_runs)
        self._before = 0, 0.0
        for measurement in self.measurements:
            self._tell(measurement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        self._trackers.close(failed=kind is not None)

    def add(self, measurement: Measurement) -> None:
        self._log.append(measurement)
        self._tell(measurement)

    def has_all(self, stands: int) -> bool:
        """Whether all measurements that were due after `stands` updates are in the log."""
        return len(self.measurements) == len(self.schedule.until(stands))

    def result(self, device: torch.device) -> Result:
        """The result of a finished training, on this machine."""
        parts = self.clock.parts()
        found = Result.of(self.measurements, self._arms, self.schedule.unit)
        return replace(found, seconds=sum(parts.values()), seconds_of=parts, origin=origin(device))

    def _tell(self, measurement: Measurement) -> None:
        """Show the measurement, and warn of members that have diverged."""
        self._track(measurement)
        points = Result.of([measurement], self._arms).curves
        spreads = {arm: own[0].spread_of_scores or own[0].spread_of_returns for arm, own in points.items() if own}
        self.latest = "".join(f", {arm} {spread.mean:.1f}" for arm, spread in spreads.items() if spread is not None)
        lost = [name for name, gone in zip(self._names, measurement.diverged, strict=True) if gone]
        for name in lost:
            if name not in self._lost:
                log.warning("%s has diverged after %d updates: excluded from means", name, measurement.updates)
        self._lost.update(lost)
        if not self._others:
            check_alive(measurement.updates, measurement.diverged)

    def _track(self, measurement: Measurement) -> None:
        """Write the measurement, and the refreshes of generators before it, to the trackers."""
        if self._refreshes.exists():
            entries = read_object(self._refreshes)["refreshes"]
            for step in sorted({entry["added"] for entry in entries}):
                if self._shown < step <= measurement.updates:
                    own = [entry for entry in entries if entry["added"] == step]  # of all seeds
                    told = {"refresh/failed": float(sum(not entry["kept"] for entry in own))}
                    parts = ("fit_seconds", "sample_seconds")
                    told |= {f"refresh/{part}": sum(entry[part] for entry in own) for part in parts}
                    told |= _summary("refresh/held_out", [entry["held_out"] for entry in own])
                    self._trackers.write(step, measurement.seconds, told)
                    self._shown = step
        found = figures(measurement, self._arms)
        updates, seconds = self._before
        if measurement.seconds > seconds:
            found[f"speed/{self._unit}_per_second"] = (measurement.updates - updates) / (measurement.seconds - seconds)
        self._before = measurement.updates, measurement.seconds
        self._trackers.write(measurement.updates, measurement.seconds, found)


def _summary(name: str, values: Sequence[float | None]) -> dict[str, float]:
    there = [value for value in values if value is not None]
    figures = {"mean": float(np.mean(there)), "min": min(there), "max": max(there)} if there else {}
    return {f"{name}/{kind}": value for kind, value in figures.items()}


def check_alive(updates: int, diverged: Sequence[bool]) -> None:
    """Raise an error when all members have diverged."""
    if all(diverged):
        advice = "lower --agent.learning-rate, or look for extreme values with `synther inspect`"
        raise SyntherError(f"all {len(diverged)} members have diverged after {updates:,} updates: {advice}")


def figures(measurement: Measurement, arms: Sequence[str]) -> dict[str, float]:
    """Mean, minimum and maximum of every number over an arm's seeds, without seeds that have diverged."""
    numbers = {"score": measurement.mean_scores, "return": measurement.mean_returns, **measurement.losses}
    found: dict[str, float] = {}
    for name, values in numbers.items():
        for arm, own in by_arm(values or (), arms).items():
            found |= _summary(f"{name}/{arm}", own)
    for arm, gone in by_arm(measurement.diverged, arms).items():
        found[f"diverged/{arm}"] = float(sum(gone))
    return found
