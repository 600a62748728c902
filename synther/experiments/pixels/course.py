"""A training in a folder, whatever it is that learns: measured, written down, kept, taken up where it was stopped.

All that was due to be measured is in the log before a checkpoint is written. So a training that was killed goes on from
its checkpoint, forgets what it had measured since, and measures the same again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.errors import ConfigError, SyntherError
from synther.experiments import tracking
from synther.experiments.clock import Clock
from synther.experiments.measurements import Log, Measurement, Result
from synther.experiments.origin import origin
from synther.progress import Phase, Progress

log = logging.getLogger(__name__)

_CHECKPOINT_SHARE = 0.05
"""Of the time, at most, that goes into checkpoints."""

_SHOWN_UPDATES = {"cpu": 20, "cuda": 1_000}
"""Updates between two movements of the display."""


class Learner(Protocol):
    """All members of an agent, of frames or of latents."""

    updates: int

    @property
    def device(self) -> torch.device: ...
    def train(self, updates: int) -> None: ...
    def losses(self) -> dict[str, NDArray[np.float32]]: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def load(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True)
class Course:
    """How long agents are trained, where, and who is told of it."""

    updates: int = 550_000
    """V-D4RL's: one at every second of its 1.1M steps."""
    measure_every: int = 10_000
    """Updates between two lines of the log; the last update always has one."""
    device: str = "auto"
    precision: compute.Precision = "auto"
    checkpoint_seconds: float = 30.0
    """At least, between two checkpoints."""
    tensorboard: tracking.Asked = "auto"
    """Write events for TensorBoard; auto does where it is installed."""
    wandb: str | None = None
    """The project of Weights & Biases that follows the run."""

    def __post_init__(self) -> None:
        for name in ("updates", "measure_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        own = {name: getattr(self, name) for name in ("updates", "measure_every", "precision")}
        return {**own, "device": compute.pick_device(self.device).type}

    def heads_precision(self) -> Literal["auto", "float32", "tf32"]:
        """Of heads alone, whose products are too small to gain from bf16."""
        if self.precision == "bf16":
            raise ConfigError("heads are trained in float32 or tf32, got bf16")
        return self.precision

    def measured_until(self, updates: int) -> list[int]:
        """When all has been measured after so many `updates`."""
        last = [updates] if updates == self.updates and updates % self.measure_every else []
        return [*range(self.measure_every, updates + 1, self.measure_every), *last]


def follow(
    learner: Learner,
    course: Course,
    folder: Path,
    arm: str,
    seeds: Sequence[int],
    progress: Progress,
    *,
    others: bool = False,
) -> Result:
    """Train to the end of the course, from wherever the folder's checkpoint stands; what was measured on the way.

    When all seeds have diverged that is told at once, unless there are `others`, which may do better.
    """
    checkpoint = folder / "checkpoint.safetensors"
    if checkpoint.exists():
        learner.load(checkpoint)
        log.info("going on after %s updates", f"{learner.updates:,}")
    written = Log(folder / "log.jsonl", course.measured_until(learner.updates), again=False)
    done = written.measurements
    clock = Clock(folder / "clock.json", done[-1].seconds if done else 0.0)
    lost: set[int] = set()
    with tracking.Tracking(folder, [arm], tensorboard=course.tensorboard, wandb=course.wandb) as tracked:
        for measurement in done:
            tracked.write(measurement)
        keeping = _Keeping(learner, course, checkpoint, clock)
        with progress.phase(f"train {arm}", course.updates, learner.updates) as phase:
            while learner.updates < course.updates:
                _train(learner, min(course.updates, _next(learner.updates, course.measure_every)), keeping, phase)
                compute.synchronize(learner.device)
                measurement = Measurement.of(learner.updates, clock.seconds, learner.losses(), None)
                written.append(measurement)
                tracked.write(measurement)
                _tell(measurement, seeds, lost)
                if not others:
                    check_alive(measurement.updates, measurement.diverged)
                keeping.save()
    clock.save()
    parts = clock.parts()
    result = Result.of(written.measurements, [arm])
    return replace(result, seconds=sum(parts.values()), seconds_of=parts, origin=origin(learner.device))


def _next(updates: int, every: int) -> int:
    return (updates // every + 1) * every


def _train(learner: Learner, end: int, keeping: _Keeping, phase: Phase) -> None:
    while learner.updates < end:
        count = min(_SHOWN_UPDATES[learner.device.type], end - learner.updates)
        began = time.monotonic()
        learner.train(count)
        compute.synchronize(learner.device)
        phase.advance(count, f"{count / (time.monotonic() - began):,.0f} updates a second")
        if learner.updates < end:  # there it is measured first
            keeping.save()


class _Keeping:
    """Checkpoints, where it is time. The last one is the agent that the training leaves behind."""

    def __init__(self, learner: Learner, course: Course, path: Path, clock: Clock) -> None:
        self.learner, self.course, self.path, self.clock = learner, course, path, clock
        self.saved, self.seconds = time.monotonic(), 0.0

    def save(self) -> None:
        wait = max(self.course.checkpoint_seconds, self.seconds / _CHECKPOINT_SHARE)
        if time.monotonic() - self.saved < wait and self.learner.updates < self.course.updates:
            return
        began = time.monotonic()
        with self.clock.counting("checkpoints"):
            self.learner.save(self.path)
        self.clock.save()
        self.saved = time.monotonic()
        self.seconds = self.saved - began


def _tell(measurement: Measurement, seeds: Sequence[int], lost: set[int]) -> None:
    """Of a member that has diverged, once."""
    gone = {seed for seed, diverged in zip(seeds, measurement.diverged, strict=True) if diverged}
    for seed in sorted(gone - lost):
        log.warning("seed %d has diverged after %d updates: no mean counts it", seed, measurement.updates)
    lost |= gone


def check_alive(updates: int, diverged: Sequence[bool]) -> None:
    """There is nothing to go on for when all have diverged."""
    if all(diverged):
        raise SyntherError(
            f"all {len(diverged)} seeds have diverged after {updates:,} updates: their losses are no finite "
            "numbers; lower --agent.learning-rate, or look for absurd rewards in the data"
        )
