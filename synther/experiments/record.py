"""What a training in a folder has come to so far: its log, its clock, and whoever else is told what was measured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from synther.errors import SyntherError
from synther.experiments.clock import Clock
from synther.experiments.measurements import Log, Measurement, Result
from synther.experiments.schedule import Schedule
from synther.experiments.tracking import Tracking
from synther.origin import origin

log = logging.getLogger(__name__)


class Record:
    """`log.jsonl` and `clock.json` of `folder`, for a training that stands after so many updates, or steps.

    Members are the `seeds` of the first arm, then those of the next. One that has diverged is told once, and the others
    go on; when all have, there is nothing to go on for, unless there are `others`, which may do better. What is due
    just where the training stands may be missing from the log if it can be measured `again`.
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
        again: bool = False,
        others: bool = False,
    ) -> None:
        self.schedule, self.latest = schedule, ""
        self._arms, self._tracking, self._others = arms, tracking, others
        self._names = [f"seed {seed} of arm {arm!r}" for arm in arms for seed in seeds]
        self._lost: set[str] = set()
        self._log = Log(folder / "log.jsonl", schedule.until(stands), again=again and schedule.includes(stands))
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
        found = Result.of(self.measurements, self._arms)
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
