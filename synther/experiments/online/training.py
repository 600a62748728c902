"""Online training as one resumable run in a folder: every seed acts in an environment and learns from rows of its own.

Where a leg ends the environments start over, a checkpoint is written, and generators are fitted if that is due, in this
order. So a run that was killed goes on from its last leg, and comes to the same result.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from synther import compute
from synther.agents.drawing import precision_for
from synther.agents.learner import Learner
from synther.data import formats
from synther.envs.evaluation import Evaluator
from synther.envs.stepping import Worlds
from synther.errors import DataError, SyntherError
from synther.experiments import tracking
from synther.experiments.evaluations import Evaluations
from synther.experiments.measurements import Result
from synther.experiments.online.experience import Experience
from synther.experiments.online.plan import Plan
from synther.experiments.online.refreshing import Refreshing
from synther.experiments.record import Record
from synther.folder import RunFolder
from synther.progress import Phase, Progress, resolve
from synther.replay.columns import Columns

log = logging.getLogger(__name__)

_ROWS = "experience"
_SHOWN_STEPS = 100
"""Steps between two movements of the display."""


def train_to(plan: Plan, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Let every seed act and learn, and leave its log, agents, rows (`replay.npz`) and `result.json` in `folder`.

    Started again it goes on where it was stopped, and with more steps where it ended; with other options, or while
    another process trains there, it refuses to touch the folder. In its log and result, `updates` are steps of the
    environment.
    """
    progress = resolve(progress)
    device = compute.pick_device(plan.device)
    precision_for(plan.precision, device)  # which refuses others
    described = plan.description() | {"device": device.type}
    run = RunFolder(folder, growth=plan.growth)
    if Result.after(plan.steps, run.result) is not None:
        run.claim(described)
        log.info("%s is finished already", folder)
        return Result.read(run.result)
    for doubt in plan.doubts():
        log.warning(doubt)
    with Worlds(plan.env_id, plan.all_seeds, options=plan.env_options) as worlds:
        learner = _learner(plan, worlds, device)  # what is wrong with the plan is told before there is a folder
        tracking.check(plan.tensorboard, plan.wandb)
        with run.work(described, lambda: Result.after(plan.steps, run.result) is not None) as unfinished:
            if unfinished:
                with (
                    tracking.Tracking(folder, [plan.name], tensorboard=plan.tensorboard, wandb=plan.wandb) as tracked,
                    _players(plan) as evaluator,
                ):
                    result = _Training(plan, worlds, learner, evaluator, folder, tracked).run(progress)
                run.finish(result.to_json())
                shutil.rmtree(folder / _ROWS, ignore_errors=True)  # replay.npz has them all
    return Result.read(run.result)


def _players(plan: Plan) -> Evaluator:
    return Evaluator(
        plan.env_id, plan.all_seeds, episodes=plan.episodes, workers=plan.workers, options=plan.env_options
    )


def _learner(plan: Plan, worlds: Worlds, device: torch.device) -> Learner:
    upsampling = plan.upsampling
    return Learner(
        plan.agent,
        plan.all_seeds,
        worlds.observation_size,
        worlds.low,
        worlds.high,
        capacity=min(plan.capacity, plan.steps),
        samples=0 if upsampling is None else upsampling.samples,
        ratio=0.0 if upsampling is None else upsampling.ratio,
        device=device,
        precision=plan.precision,
    )


def _columns(worlds: Worlds) -> Columns:
    return Columns(
        worlds.observation_size,
        len(worlds.low),
        action_space=worlds.action_space,
        observation_space=worlds.observation_space,
    )


class _Training:
    """From wherever the folder's checkpoint stands to the end."""

    def __init__(
        self,
        plan: Plan,
        worlds: Worlds,
        learner: Learner,
        evaluator: Evaluator,
        folder: Path,
        tracked: tracking.Tracking,
    ) -> None:
        self.plan, self.worlds, self.learner, self.folder = plan, worlds, learner, folder
        self.experience = Experience(folder / _ROWS, _columns(worlds))
        self.checkpoint, self.replay = folder / "checkpoint.safetensors", folder / "replay.npz"
        if self.checkpoint.exists():
            self._take_up()
        self.refreshing = (
            None
            if plan.upsampling is None
            else Refreshing(plan.upsampling, plan.env_id, self.experience, learner, folder)
        )
        self.record = Record(folder, plan.measured, self.step, [plan.name], plan.all_seeds, tracked, again=True)
        self.clock, self.evaluations = self.record.clock, Evaluations(evaluator, self.record)
        self.began, self.first, self._shown = time.monotonic(), self.step, self.step

    @property
    def step(self) -> int:
        """Steps that were taken."""
        return self.experience.steps

    def run(self, progress: Progress) -> Result:
        plan = self.plan
        if self.step:
            self._resume(progress)
        with self._rows_kept():
            while self.step < plan.steps:
                with progress.phase("online", plan.steps, self.step) as phase:
                    self._leg(phase)
                    while self.step < plan.steps and not plan.is_refreshed(self.step):
                        self._leg(phase)
                self._refresh(progress)
            self.evaluations.wait(0)
        self._write_rows()
        return self.record.result(self.learner.device)

    def _take_up(self) -> None:
        """Bring learner and experience to where the checkpoint was written."""
        step = self.learner.load(self.checkpoint)
        self.experience.load(self.plan.legs_until(step), self.plan.seeds, self.replay)
        self.learner.add(self.experience.rows(step))
        log.info("going on after %s steps", f"{step:,}")

    def _resume(self, progress: Progress) -> None:
        """Do what had to follow the checkpoint."""
        if not self.record.has_all(self.step):  # stopped before it was evaluated
            self.evaluations.begin(self.learner, self.step)
        if self.refreshing is not None:
            self.refreshing.restore(self.step, progress, rows=not self.plan.is_refreshed(self.step))
        self._refresh(progress)

    def _leg(self, phase: Phase) -> None:
        """Act and learn until the environments start over, and write a checkpoint there."""
        end = self.plan.leg_after(self.step)
        self.worlds.begin(self.step)
        while self.step < end:
            self._one_step()
            if self.plan.measured.includes(self.step):
                self.evaluations.begin(self.learner, self.step)
            if self.step % _SHOWN_STEPS == 0 or self.step == end:
                self.evaluations.collect()
                rate = (self.step - self.first) / (time.monotonic() - self.began)
                phase.advance(self.step - self._shown, f"{rate:,.0f} steps a second{self.record.latest}")
                self._shown = self.step
        self._save()

    def _one_step(self) -> None:
        learner, step = self.learner, self.step
        learning = step >= self.plan.random_steps
        actions = learner.guess()
        if learning:
            chosen = learner.act(self.worlds.observations)
            # A seed that has diverged acts by chance: measurements tell of it, and the others go on.
            actions = np.where(np.isfinite(chosen), chosen, actions)
        began = time.monotonic()
        stepped = self.worlds.step(actions, step)
        self.clock.add("environments", time.monotonic() - began)
        self.experience.append(stepped.rows, stepped.timeouts)
        learner.add(stepped.rows)
        if learning:
            learner.train()

    def _save(self) -> None:
        """Rows first: a checkpoint without them could not be taken up."""
        self.evaluations.wait(1 if self.plan.measured.includes(self.step) else 0)
        with self.clock.counting("checkpoints"):
            self.experience.cut()
            self.experience.save()
            self.learner.save(self.checkpoint)
        self.clock.save()

    def _refresh(self, progress: Progress) -> None:
        """Where that is due."""
        if self.refreshing is not None and self.plan.is_refreshed(self.step):
            began = time.monotonic()
            self.refreshing.refresh(self.step, progress)
            self.clock.add("generators", time.monotonic() - began)

    @contextmanager
    def _rows_kept(self) -> Iterator[None]:
        """An environment that fails, here or in an evaluation, takes no rows with it."""
        try:
            yield
        except SyntherError as error:
            if not self.step:
                raise
            self._write_rows()
            kept = f"the {self.step:,} steps before it are in {self.replay}"
            raise DataError(f"{error}; {kept}") from error

    def _write_rows(self) -> None:
        rows = self.experience.transitions(self.plan.env_id)
        formats.write(self.replay, replace(rows, env_options=self.plan.env_options))
