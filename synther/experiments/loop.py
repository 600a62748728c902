"""The training loops of all runs. They train agents, measure them, write checkpoints and resume from them.

`train` is for agents that learn from data, `Acting` is for agents that act and learn. Both measure the agents with
`Evaluations`, which can run in parallel to the training. A checkpoint is written only when all earlier measurements are
in the log. So a killed run resumes from its checkpoint, repeats the one evaluation that may be missing, and ends with
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
from synther.interrupts import uninterrupted
from synther.pixels.agent import PixelAgent
from synther.progress import Phase, Progress

Actions = NDArray[np.float32]

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file of agents in the folder of a run."""

MOST_UNDER_WAY = 4
"""Largest number of evaluations at the same time. Each holds a copy of all policies. If evaluations are too slow, a
larger number would only delay the wait for them."""

SHOWN_UPDATES = {"cpu": 20, "cuda": 1_000}
"""Number of training updates between two updates of the progress display, by device."""


class Evaluator(Protocol):
    def start(self, policies: Any, number: int) -> Any:
        """Begin to play episodes with these policies. Return a future, with the methods `done()` and `result()`."""


class Evaluations:
    """Measurements that have begun. Each is recorded when it and all earlier ones are done. `freeze` converts the
    agents' policy for the evaluator. Without an evaluator, a measurement has only losses."""

    def __init__(self, evaluator: Evaluator | None, record: Record, freeze: Callable[[Any], Any] = frozen) -> None:
        self._evaluator, self._record, self._freeze = evaluator, record, freeze
        self._begun: deque[tuple[int, float, dict[str, NDArray[Any]], Any]] = deque()

    def begin(self, agent: Any, updates: int) -> None:
        """Begin to measure the agent after `updates` updates. If too many evaluations run, wait for the first."""
        compute.synchronize(agent.device)
        seconds = self._record.clock.seconds
        self.wait(MOST_UNDER_WAY - 1)
        # The number of updates determines the initial states, so the last evaluation does not depend on earlier ones.
        pending = None if self._evaluator is None else self._evaluator.start(self._freeze(agent.policy()), updates)
        self._begun.append((updates, seconds, agent.losses(), pending))

    def collect(self) -> None:
        """Record all measurements that are done."""
        while self._begun and ((pending := self._begun[0][-1]) is None or pending.done()):
            self._record_first()

    def wait(self, left: int) -> None:
        """Wait until at most `left` measurements are not done."""
        with self._record.clock.counting("waiting"):
            while len(self._begun) > left:
                self._record_first()

    def _record_first(self) -> None:
        updates, seconds, losses, pending = self._begun[0]
        measurement = Measurement.of(updates, seconds, losses, None if pending is None else pending.result())
        self._begun.popleft()
        self._record.add(measurement)


def _rate(unit: str, first: int, record: Record) -> Callable[[int], str]:
    """Return a function that formats the speed of this process and the latest scores, for the progress display."""
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
    """Train up to the last update. Resume from the checkpoint in `folder` if there is one. Raise an error when all
    seeds have diverged, except if there are `others`: seeds that are trained separately and may not diverge.

    A KeyboardInterrupt writes a checkpoint, except while evaluations are under way."""
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        learner.load(checkpoint)
        log.info("resuming after %s updates", f"{learner.updates:,}")
    schedule = Schedule(spec.measure_every if isinstance(spec, PixelRun) else spec.evaluate_every, spec.updates)
    record = Record(folder, schedule, learner.updates, arms, seeds, spec, others=others)
    evaluations, rate = Evaluations(evaluator, record), _rate("updates", learner.updates, record)
    checkpoints = Checkpoints(record.clock, spec.checkpoint_seconds)

    def write() -> None:
        compute.synchronize(learner.device)
        checkpoints.write(lambda: learner.save(checkpoint))

    def save() -> None:
        """Write a checkpoint if one is due. The last checkpoint holds the trained agents."""
        if learner.updates < schedule.last and not checkpoints.are_due():
            return
        if schedule.includes(learner.updates):
            evaluations.wait(1)
        elif not record.has_all(learner.updates):  # a resumed run could not repeat a measurement of earlier agents
            return
        write()

    with record, progress.phase(label, schedule.last, learner.updates) as phase:
        if not record.has_all(learner.updates):  # the run was stopped before this evaluation was done
            evaluations.begin(learner, learner.updates)
        try:
            while learner.updates < schedule.last:
                count = min(SHOWN_UPDATES[learner.device.type], schedule.after(learner.updates) - learner.updates)
                with uninterrupted() as interrupted:  # not in the middle of an update
                    learner.train(count, interrupted)
                evaluations.collect()
                phase.advance(count, rate(learner.updates))
                if schedule.includes(learner.updates):
                    evaluations.begin(learner, learner.updates)
                save()
        except KeyboardInterrupt:
            evaluations.collect()
            if record.has_all(learner.updates):
                write()
            raise
        evaluations.wait(0)
        record.clock.save()
    return record.result(learner.device)


class Acting(ABC):
    """The training of agents that act and learn, from their checkpoint to the last step.

    At the end of a segment a checkpoint is written, and generators are fitted if a refresh is due. The next segment
    begins with a reset of all environments. So a run can be resumed without the state of a simulator.
    """

    shown: ClassVar[int]
    """Number of steps between two updates of the progress display."""
    refreshing: Refreshing | Copying | LatentRefreshing | None = None
    """How synthetic rows are refreshed. None: the agents learn only from real rows."""

    def __init__(self, spec: OnlineRun, envs: Any, learner: Any, folder: Path) -> None:
        self.spec, self.envs, self.learner, self.folder = spec, envs, learner, folder
        schedule = Schedule(spec.evaluate_every, spec.steps, "env_steps")
        self.record = Record(folder, schedule, self.step, [spec.arm], spec.all_seeds, spec)
        self.clock = self.record.clock
        if self.step:
            log.info("resuming after %s steps", f"{self.step:,}")
        every = f"{spec.checkpoint_every:,}"
        log.info("saving every %s steps (--checkpoint-every): an interrupted run resumes from there", every)

    def refresh(self, progress: Progress) -> None:
        """Fit the generators again and learn from their rows, if a refresh is due. Otherwise restore the last rows."""
        if self.refreshing is not None and self.spec.is_refreshed(self.step):
            with self.clock.counting(self.refreshing.part):
                self.refreshing.refresh(self.step, progress)
        elif self.refreshing is not None:
            self.refreshing.draw(self.step, progress)

    @property
    @abstractmethod
    def step(self) -> int:
        """Number of steps taken so far."""

    @abstractmethod
    def reset(self) -> None:
        """Reset all environments."""

    @abstractmethod
    def choose(self) -> Callable[[], Actions]:
        """Start to compute the next actions (S, A) of the agents. Return a function that waits for them."""

    @abstractmethod
    def keep(self, stepped: Any, end: int) -> None:
        """Store the outcome of one step of all environments. The segment ends after `end` steps."""

    @abstractmethod
    def learn(self, step: int) -> None:
        """Update the agents after step number `step`."""

    @abstractmethod
    def save_data(self) -> None:
        """Write the data without which a checkpoint cannot be resumed. It is called before each checkpoint."""

    def _keep(self) -> None:
        """Copy the present checkpoint to `kept/`, if `keep_every` says so and a copy does not exist yet."""
        every, kept = self.spec.keep_every, self.folder / "kept" / f"{self.step}.safetensors"
        if every is not None and self.step % every == 0 and not kept.exists():
            with replacing(kept) as beside:
                shutil.copyfile(self.folder / CHECKPOINT, beside)

    def train(self, evaluations: Evaluations, progress: Progress) -> Result:
        """Act and learn up to the last step."""
        spec, rate = self.spec, _rate("steps", self.step, self.record)
        if self.step:
            self._keep()
            if not self.record.has_all(self.step):  # the run was stopped before this evaluation was done
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
        """Act and learn until the end of the segment, and write a checkpoint there."""
        end, shown = self.spec.segment_after(self.step), self.step
        self.reset()
        actions = self._chosen()
        while self.step < end:
            actions = self._one_step(actions(), end)
            if self.record.schedule.includes(self.step):
                evaluations.begin(self.learner, self.step)
            if self.step % self.shown == 0 or self.step == end:
                evaluations.collect()
                phase.advance(self.step - shown, rate(self.step))
                shown = self.step
        evaluations.wait(1 if self.record.schedule.includes(self.step) else 0)
        with self.clock.counting("checkpoints"):
            self.save_data()
            self.learner.save(self.folder / CHECKPOINT)
            self._keep()
        self.clock.save()

    def _one_step(self, actions: Actions, end: int) -> Callable[[], Actions]:
        """Take a step with these actions, and start the updates of this step. Return the choice of the next actions.

        The next actions are chosen before these updates. So a GPU trains while the environments take the next step.
        """
        step = self.step
        with self.clock.counting("environments"):
            stepped = self.envs.step(actions, step)
        self.keep(stepped, end)
        following = self._chosen() if self.step < end else self.learner.random_action
        if step >= self.spec.learning_starts:
            self.learn(step)
        return following

    def _chosen(self) -> Callable[[], Actions]:
        """Start to choose the next actions. Return a function that waits for them."""
        at_random: Actions = self.learner.random_action()
        if self.step < self.spec.learning_starts:
            return lambda: at_random
        chosen = self.choose()

        def finite() -> Actions:
            # A seed that has diverged acts at random, so that the others can continue. Its measurements show that.
            actions = chosen()
            return np.where(np.isfinite(actions), actions, at_random)

        return finite
