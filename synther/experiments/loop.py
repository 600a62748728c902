"""The training loops of all runs: agents are trained, measured, saved, and resumed.

`train` is for agents that learn from data, `Acting` for agents that act and learn. Both measure through `Evaluations`,
a few of which may be under way while training goes on. A checkpoint is written when the log has all measurements before
it. So a run that was killed resumes from its checkpoint, repeats the evaluation that is missing there, and ends with
the same result.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from synther import compute
from synther.agents.agent import Agent
from synther.durable import replacing
from synther.envs.policies import frozen
from synther.experiments.record import Checkpoints, Record, Schedule, log
from synther.experiments.refresh import Copying, LatentRefreshing, Refreshing
from synther.experiments.results import Measurement, Result
from synther.experiments.specs import OfflineRun, OnlineRun, PixelRun
from synther.pixels.agent import PixelAgent
from synther.progress import Phase, Progress

CHECKPOINT = "checkpoint.safetensors"
"""File of the agents in the folder of a run."""

MOST_UNDER_WAY = 4
"""Evaluations. Each holds a copy of all policies; more would only hide for longer that evaluation is too slow."""

SHOWN_UPDATES = {"cpu": 20, "cuda": 1_000}
"""Updates between two updates of the display."""


class Evaluator(Protocol):
    def start(self, policies: Any, number: int) -> Any:
        """Begin to play episodes with these policies; returns something with `done()` and `result()`, as a future."""


class Evaluations:
    """Measurements that are under way. Each is recorded when it and those before it are done.

    `freeze` turns the agents' policy into what the evaluator plays with. Without an evaluator, only losses count.
    """

    def __init__(self, evaluator: Evaluator | None, record: Record, freeze: Callable[[Any], Any] = frozen) -> None:
        self._evaluator, self._record, self._freeze = evaluator, record, freeze
        self._begun: deque[tuple[int, float, dict[str, NDArray[Any]], Any]] = deque()

    def begin(self, agent: Any, updates: int) -> None:
        """Measure the agent as it is now, after `updates` updates, once few enough measurements are under way."""
        compute.synchronize(agent.device)
        seconds = self._record.clock.seconds
        self.wait(MOST_UNDER_WAY - 1)
        # Numbered by the updates: the last evaluation is the same however many there were before.
        pending = None if self._evaluator is None else self._evaluator.start(self._freeze(agent.policy()), updates)
        self._begun.append((updates, seconds, agent.losses(), pending))

    def collect(self) -> None:
        """Record what is done."""
        while self._begun and ((pending := self._begun[0][-1]) is None or pending.done()):
            self._record_first()

    def wait(self, left: int) -> None:
        """Wait until at most `left` measurements are under way."""
        with self._record.clock.counting("waiting"):
            while len(self._begun) > left:
                self._record_first()

    def _record_first(self) -> None:
        updates, seconds, losses, pending = self._begun[0]
        measurement = Measurement.of(updates, seconds, losses, None if pending is None else pending.result())
        self._begun.popleft()
        self._record.add(measurement)


def _rate(unit: str, first: int, record: Record) -> Callable[[int], str]:
    """Text for the display: the speed of this process, and the latest scores."""
    began = time.monotonic()

    def text(now: int) -> str:
        rate = (now - first) / (time.monotonic() - began)
        return f"{rate:,.{0 if rate >= 10 else 1}f} {unit} a second{record.latest}"

    return text


def train(
    learner: Agent | PixelAgent,
    spec: OfflineRun | PixelRun,
    folder: Path,
    arms: Sequence[str],
    seeds: Sequence[int],
    progress: Progress,
    *,
    evaluator: Evaluator | None = None,
    label: str = "train",
    others: bool = False,
) -> Result:
    """Train to the last update, from wherever the checkpoint in `folder` stands.

    When all seeds have diverged, this raises an error, unless there are `others`, which may do better.
    """
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        learner.load(checkpoint)
        log.info("going on after %s updates", f"{learner.updates:,}")
    schedule = Schedule(spec.measure_every if isinstance(spec, PixelRun) else spec.evaluate_every, spec.updates)
    record = Record(folder, schedule, learner.updates, arms, seeds, spec, others=others)
    evaluations, rate = Evaluations(evaluator, record), _rate("updates", learner.updates, record)
    checkpoints = Checkpoints(record.clock, spec.checkpoint_seconds)

    def save() -> None:
        """Where it is time. The last checkpoint holds the agents that the run leaves behind."""
        if learner.updates < schedule.last and not checkpoints.are_due():
            return
        if schedule.includes(learner.updates):
            evaluations.wait(1)
        elif not record.has_all(learner.updates):  # a resumed run could not evaluate again what was measured earlier
            return
        compute.synchronize(learner.device)
        checkpoints.write(lambda: learner.save(checkpoint))

    def until(end: int, phase: Phase) -> None:
        while learner.updates < end:
            count = min(SHOWN_UPDATES[learner.device.type], end - learner.updates)
            learner.train(count)
            evaluations.collect()
            phase.advance(count, rate(learner.updates))
            if learner.updates < end:
                save()

    with record, progress.phase(label, schedule.last, learner.updates) as phase:
        if not record.has_all(learner.updates):  # stopped before it was evaluated
            evaluations.begin(learner, learner.updates)
        while learner.updates < schedule.last:
            until(schedule.after(learner.updates), phase)
            evaluations.begin(learner, learner.updates)
            save()
        evaluations.wait(0)
        record.clock.save()
    return record.result(learner.device)


class Acting(ABC):
    """Agents that act and learn, from wherever their checkpoint stands to the last step.

    Where a segment ends the environments start over, a checkpoint is written, and generators are fitted if that is due,
    in this order: resuming needs no state of a simulator.
    """

    shown: ClassVar[int]
    """Steps between two updates of the display."""
    refreshing: Refreshing | Copying | LatentRefreshing | None = None

    def __init__(self, spec: OnlineRun, envs: Any, learner: Any, folder: Path) -> None:
        self.spec, self.envs, self.learner, self.folder = spec, envs, learner, folder
        schedule = Schedule(spec.evaluate_every, spec.steps, "env_steps")
        self.record = Record(folder, schedule, self.step, [spec.arm], spec.all_seeds, spec)
        self.clock = self.record.clock
        if self.step:
            log.info("going on after %s steps", f"{self.step:,}")

    def refresh(self, progress: Progress) -> None:
        """Fit generators again, and learn from their rows, if that is due. Otherwise bring back the last ones."""
        if self.refreshing is None:
            return
        if not self.spec.is_refreshed(self.step):
            self.refreshing.draw(self.step, progress)
            return
        with self.clock.counting(self.refreshing.part):
            self.refreshing.refresh(self.step, progress)

    @property
    @abstractmethod
    def step(self) -> int:
        """Number of steps taken."""

    @abstractmethod
    def reset(self) -> None:
        """Reset all environments."""

    @abstractmethod
    def choose(self) -> Any:
        """The next actions of the agents, (S, A)."""

    @abstractmethod
    def keep(self, stepped: Any, end: int) -> None:
        """Keep what one step of all environments gave, in a segment that ends after `end` steps."""

    @abstractmethod
    def learn(self, step: int) -> None:
        """Update the agents after step number `step`."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint, and before it the data that resuming needs."""

    def _keep(self) -> None:
        """Copy the checkpoint that was just written, or that a stopped run had no time to copy, if it is to stay."""
        every, kept = self.spec.keep_every, self.folder / "kept" / f"{self.step}.safetensors"
        if every is not None and self.step % every == 0 and not kept.exists():
            with replacing(kept) as beside:
                shutil.copyfile(self.folder / CHECKPOINT, beside)

    def train(self, evaluations: Evaluations, progress: Progress) -> Result:
        """Act and learn up to the last step."""
        spec, rate = self.spec, _rate("steps", self.step, self.record)
        if self.step:
            self._keep()
            if not self.record.has_all(self.step):  # stopped before it was evaluated
                evaluations.begin(self.learner, self.step)
            self.refresh(progress)
        while self.step < spec.steps:
            with progress.phase("online", spec.steps, self.step) as phase:
                self._segment(evaluations, phase, rate)
                while self.step < spec.steps and not spec.is_refreshed(self.step):
                    self._segment(evaluations, phase, rate)
            if self.step < spec.steps:
                self.refresh(progress)
        evaluations.wait(0)
        return self.record.result(self.learner.device)

    def _segment(self, evaluations: Evaluations, phase: Phase, rate: Callable[[int], str]) -> None:
        """Act and learn until the environments start over, and write a checkpoint there."""
        end, shown = self.spec.segment_after(self.step), self.step
        self.reset()
        while self.step < end:
            self._one_step(end)
            if self.record.schedule.includes(self.step):
                evaluations.begin(self.learner, self.step)
            if self.step % self.shown == 0 or self.step == end:
                evaluations.collect()
                phase.advance(self.step - shown, rate(self.step))
                shown = self.step
        evaluations.wait(1 if self.record.schedule.includes(self.step) else 0)
        with self.clock.counting("checkpoints"):
            self.save()
            self._keep()
        self.clock.save()

    def _one_step(self, end: int) -> None:
        step = self.step
        learning = step >= self.spec.learning_starts
        actions = self.learner.random_action()
        if learning:
            chosen = self.choose()
            # A seed that has diverged acts at random: its measurements show it, and the others continue.
            actions = np.where(np.isfinite(chosen), chosen, actions)
        with self.clock.counting("environments"):
            stepped = self.envs.step(actions, step)
        self.keep(stepped, end)
        if learning:
            self.learn(step)
