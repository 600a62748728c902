"""The records of a run while it trains (log, clock and trackers), and the schedule of measurements and checkpoints.

Trackers such as TensorBoard get the lines of the log. When a run is resumed, they get all lines again from the first
one. So they show every measurement exactly once.
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

from synther.compute import pick_device
from synther.errors import SyntherError
from synther.experiments.results import Log, Measurement, Result, Unit, by_arm
from synther.experiments.spec import Tracked
from synther.folder import read_object, write_object
from synther.origin import origin
from synther.progress import counted
from synther.trackers import Trackers, of_runs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """When to measure: every `every` updates (online: steps), and after the last one."""

    every: int
    last: int
    unit: Unit = "updates"

    def includes(self, time: int) -> bool:
        """Return whether a measurement is due at `time`."""
        return time == self.last or time % self.every == 0

    def after(self, time: int) -> int:
        """Return the time of the first measurement after `time`."""
        return min(self.last, (time // self.every + 1) * self.every)

    def until(self, time: int) -> list[int]:
        """Return the times of all measurements up to `time`."""
        last = [time] if time == self.last and time % self.every else []
        return [*range(self.every, time + 1, self.every), *last]


_CHECKPOINT_SHARE = 0.05
"""Largest share of the training time that writing checkpoints may take."""


class Clock:
    """Measures the seconds of a run. It starts at the time saved at `path`, but at least at `least` seconds."""

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
        """Count the time in this context as `part` instead of training, for example for writing checkpoints."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + time.monotonic() - began

    def parts(self) -> dict[str, float]:
        """Return the seconds of training and of all other parts, by name."""
        return {"training": self.seconds - sum(self._parts.values()), **self._parts}

    def save(self) -> None:
        write_object(self.path, {"seconds": self.seconds, **self._parts})


class Checkpoints:
    """When to write checkpoints: at most every `seconds`, and less often if they take long."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._least, self._pause = clock, seconds, seconds
        self._written = time.monotonic()

    def are_due(self) -> bool:
        return time.monotonic() - self._written >= self._pause

    def write(self, save: Callable[[], None]) -> None:
        """Write a checkpoint with the function `save`, and save the clock."""
        began = time.monotonic()
        with self._clock.counting("checkpoints"):
            save()
        self._clock.save()
        self._written = time.monotonic()
        self._pause = max(self._least, (self._written - began) / _CHECKPOINT_SHARE)


class Record:
    """Writes `log.jsonl`, `clock.json` and trackers of a run in `folder`. `stands` updates (or steps) are already done.

    The members are the `seeds` of the first arm, followed by those of the next arm. When a member diverges, a warning
    is logged once, and the others continue. When all have diverged, an error is raised, except if there are `others` in
    other groups. A measurement that is due after exactly `stands` updates may be missing in the log: it is repeated.
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
        agents, device = counted(len(self._names), "agent"), pick_device(spec.device)
        work = agents, f"{schedule.last:,}", self._unit, device, f"{schedule.every:,}", folder
        log.info("training %s to %s %s on %s, measured every %s, in %s", *work)
        self._log = Log(folder / "log.jsonl", schedule.until(stands), again=again, unit=schedule.unit)
        self.measurements: Sequence[Measurement] = self._log.measurements
        self.clock = Clock(folder / "clock.json", self.measurements[-1].seconds if self.measurements else 0.0)
        self._refreshes, self._shown = folder / "refreshes.json", 0
        self._trackers = Trackers(folder, spec.tensorboard, spec.wandb, of_runs)
        self._before = 0, 0.0
        for measurement in self.measurements:
            self._report(measurement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        self._trackers.close(failed=kind is not None)

    def add(self, measurement: Measurement) -> None:
        """Append a measurement to the log and report it."""
        self._log.append(measurement)
        self._report(measurement)

    def has_all(self, stands: int) -> bool:
        """Return whether all measurements up to `stands` updates are in the log."""
        return len(self.measurements) == len(self.schedule.until(stands))

    def result(self, device: torch.device) -> Result:
        """Return the result of a finished training, with a description of this machine."""
        parts = self.clock.parts()
        found = Result.of(self.measurements, self._arms, self.schedule.unit)
        return replace(found, seconds=sum(parts.values()), seconds_of=parts, origin=origin(device))

    def _report(self, measurement: Measurement) -> None:
        """Send the measurement to trackers and display, and warn about members that have diverged."""
        self._track(measurement)
        points = Result.of([measurement], self._arms).curves
        spreads = {arm: own[0].spread_of_scores or own[0].spread_of_returns for arm, own in points.items() if own}
        self.latest = "".join(f", {arm} {spread.mean:.1f}" for arm, spread in spreads.items() if spread is not None)
        for name, gone in zip(self._names, measurement.diverged, strict=True):
            if gone and name not in self._lost:
                log.warning("%s has diverged after %d updates: excluded from means", name, measurement.updates)
                self._lost.add(name)
        if not self._others:
            check_alive(measurement.updates, measurement.diverged)

    def _track(self, measurement: Measurement) -> None:
        """Write the measurement, and the generators' refreshes before it, to the trackers."""
        if self._refreshes.exists():
            entries = read_object(self._refreshes)["refreshes"]
            for step in sorted({entry["added"] for entry in entries}):
                if self._shown < step <= measurement.updates:
                    own = [entry for entry in entries if entry["added"] == step]  # one entry per seed
                    refresh = {"refresh/failed": float(sum(not entry["kept"] for entry in own))}
                    parts = ("fit_seconds", "sample_seconds")
                    refresh |= {f"refresh/{part}": sum(entry[part] for entry in own) for part in parts}
                    refresh |= _summary("refresh/held_out", [entry["held_out"] for entry in own])
                    self._trackers.write(step, measurement.seconds, refresh)
                    self._shown = step
        found = figures(measurement, self._arms)
        updates, seconds = self._before
        if measurement.seconds > seconds:
            found[f"speed/{self._unit}_per_second"] = (measurement.updates - updates) / (measurement.seconds - seconds)
        self._before = measurement.updates, measurement.seconds
        self._trackers.write(measurement.updates, measurement.seconds, found)


def _summary(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """Return mean, minimum and maximum of the values that are not None."""
    there = [value for value in values if value is not None]
    figures = {"mean": float(np.mean(there)), "min": min(there), "max": max(there)} if there else {}
    return {f"{name}/{kind}": value for kind, value in figures.items()}


def check_alive(updates: int, diverged: Sequence[bool]) -> None:
    """Raise an error when all members have diverged."""
    if all(diverged):
        advice = "lower --agent.learning-rate, or look for extreme values with `synther inspect`"
        raise SyntherError(f"all {len(diverged)} members have diverged after {updates:,} updates: {advice}")


def figures(measurement: Measurement, arms: Sequence[str]) -> dict[str, float]:
    """Return mean, minimum and maximum over the seeds of each arm, for every figure. Diverged seeds are excluded."""
    numbers = {"score": measurement.mean_scores, "return": measurement.mean_returns, **measurement.losses}
    found: dict[str, float] = {}
    for name, values in numbers.items():
        for arm, own in by_arm(values or (), arms).items():
            found |= _summary(f"{name}/{arm}", own)
    return found | {f"diverged/{arm}": float(sum(gone)) for arm, gone in by_arm(measurement.diverged, arms).items()}
