"""A training in a folder, whatever it is that learns: measured, written down, kept, taken up where it was stopped.

All that was due to be measured is in the log before a checkpoint is written. So a training that was killed goes on from
its checkpoint, forgets what it had measured since, and measures the same again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.errors import ConfigError
from synther.experiments import tracking
from synther.experiments.clock import Checkpoints
from synther.experiments.measurements import Measurement, Result
from synther.experiments.record import Record
from synther.experiments.schedule import Schedule
from synther.plain import check_least
from synther.progress import Phase, Progress

log = logging.getLogger(__name__)

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
        check_least(self, updates=1, measure_every=1)

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        own = {name: getattr(self, name) for name in ("updates", "measure_every", "precision")}
        return {**own, "device": compute.pick_device(self.device).type}

    def heads_precision(self) -> Literal["auto", "float32", "tf32"]:
        """Of heads alone, whose products are too small to gain from bf16."""
        if self.precision == "bf16":
            raise ConfigError("heads are trained in float32 or tf32, got bf16")
        return self.precision

    @property
    def measured(self) -> Schedule:
        return Schedule(self.measure_every, self.updates)


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
    with tracking.Tracking(folder, [arm], tensorboard=course.tensorboard, wandb=course.wandb) as tracked:
        record = Record(folder, course.measured, learner.updates, [arm], seeds, tracked, others=others)
        clock = record.clock
        checkpoints = Checkpoints(clock, course.checkpoint_seconds)

        def keep() -> None:
            """Where it is time. The last checkpoint is the agent that the training leaves behind."""
            if checkpoints.are_due() or learner.updates == course.updates:
                checkpoints.write(lambda: learner.save(checkpoint))

        with progress.phase(f"train {arm}", course.updates, learner.updates) as phase:
            while learner.updates < course.updates:
                _train(learner, course.measured.after(learner.updates), keep, phase)
                record.add(Measurement.of(learner.updates, clock.seconds, learner.losses(), None))
                keep()
    clock.save()
    return record.result(learner.device)


def _train(learner: Learner, end: int, keep: Callable[[], None], phase: Phase) -> None:
    while learner.updates < end:
        count = min(_SHOWN_UPDATES[learner.device.type], end - learner.updates)
        began = time.monotonic()
        learner.train(count)
        compute.synchronize(learner.device)
        phase.advance(count, f"{count / (time.monotonic() - began):,.0f} updates a second")
        if learner.updates < end:  # there it is measured first
            keep()
