"""Online training of agents that see, as one resumable run in a folder: every seed acts in a world drawn for it.

As in `online/training.py`: where a leg ends the worlds start over, a checkpoint is written, and a refresh is made if it
is due, in this order. So a run that was killed goes on from its last leg, and comes to the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from synther import compute
from synther.envs.evaluation import Evaluation
from synther.envs.pixels import PixelWorld
from synther.envs.scores import reference
from synther.experiments import tracking
from synther.experiments.measurements import Measurement, Result
from synther.experiments.online_pixels.film import Film, replayed
from synther.experiments.online_pixels.plan import PixelPlan
from synther.experiments.online_pixels.refreshing import Refreshing
from synther.experiments.record import Record
from synther.folder import RunFolder
from synther.pixels import evaluation
from synther.pixels.learner import PixelLearner
from synther.pixels.ring import Numbers
from synther.pixels.worlds import PixelWorlds, Records
from synther.progress import Phase, Progress, resolve

log = logging.getLogger(__name__)

_COLOURS = 3
"""Channels of a frame."""

_SHOWN_STEPS = 20
"""Steps between two movements of the display."""


def train_to(
    plan: PixelPlan, folder: Path, *, progress: Progress | bool = True, world: Callable[..., PixelWorld] = PixelWorld
) -> Result:
    """Let every seed act and learn, and leave its log, agents, frames and `result.json` in `folder`.

    Started again it goes on where it was stopped, and with more steps where it ended; with other options, or while
    another process trains there, it refuses to touch the folder. In its log and result, `updates` are steps. `world`
    makes what is acted in, in other processes.
    """
    device = compute.pick_device(plan.device)
    described = plan.description() | {"device": device.type}
    run = RunFolder(folder, growth=plan.growth)
    if Result.after(plan.steps, run.result) is not None:
        run.claim(described)
        log.info("%s is finished already", folder)
        return Result.read(run.result)
    for doubt in plan.doubts():
        log.warning(doubt)
    tracking.check(plan.tensorboard, plan.wandb)
    about: dict[str, Any] = {"size": plan.size, "repeat": plan.repeat, "processes": plan.workers, "world": world}
    with PixelWorlds(plan.env_id, plan.all_seeds, **about) as worlds:
        learner = PixelLearner(
            plan.agent,
            plan.all_seeds,
            (_COLOURS, plan.size, plan.size),
            worlds.low,
            worlds.high,
            capacity=plan.frames,
            device=device,
            precision=plan.precision,
        )  # what is wrong with the plan is told before there is a folder
        with run.work(described, lambda: Result.after(plan.steps, run.result) is not None) as unfinished:
            if unfinished:
                with tracking.Tracking(folder, [plan.name], tensorboard=plan.tensorboard, wandb=plan.wandb) as tracked:
                    result = _Training(plan, worlds, learner, folder, tracked, world).run(resolve(progress))
                run.finish(result.to_json())
    return Result.read(run.result)


class _Training:
    """From wherever the folder's checkpoint stands to the end."""

    def __init__(
        self,
        plan: PixelPlan,
        worlds: PixelWorlds,
        learner: PixelLearner,
        folder: Path,
        tracked: tracking.Tracking,
        world: Callable[..., PixelWorld],
    ) -> None:
        self.plan, self.worlds, self.learner, self.world = plan, worlds, learner, world
        self.film = Film(folder / "frames", plan.all_seeds, worlds, plan.env_id, plan.repeat)
        self.everybody: Numbers = np.arange(plan.seeds)
        self.checkpoint = folder / "checkpoint.safetensors"
        if self.checkpoint.exists():
            self._take_up()
        how = plan.upsampling
        self.refreshing = None if how is None else Refreshing(how, learner, folder, plan.precision)
        self.record = Record(folder, plan.measured, self.step, [plan.name], plan.all_seeds, tracked)
        self.clock = self.record.clock
        self.began, self.first = time.monotonic(), self.step

    @property
    def step(self) -> int:
        """Steps that were taken."""
        return self.learner.decisions

    def run(self, progress: Progress) -> Result:
        plan = self.plan
        self._refresh(progress)  # which may have had to follow the checkpoint
        while self.step < plan.steps:
            with progress.phase("online", plan.steps, self.step) as phase:
                self._leg(phase)
                while self.step < plan.steps and not plan.is_refreshed(self.step):
                    self._leg(phase)
            self._refresh(progress)
        return self.record.result(self.learner.device)

    def _take_up(self) -> None:
        """Bring the learner and its frames to where the checkpoint was written."""
        self.learner.load(self.checkpoint)
        for leg in self.film.legs(self.plan.legs_until(self.step)):
            for records, who in replayed(leg):
                self.learner.add(records, who)
        log.info("going on after %s steps", f"{self.step:,}")

    def _leg(self, phase: Phase) -> None:
        """Act and learn until the worlds start over, and write a checkpoint there."""
        end, shown = self.plan.leg_after(self.step), self.step
        self._see(self.worlds.begin(self.step), self.everybody)
        while self.step < end:
            self._one_step(end)
            if self.plan.measured.includes(self.step):
                self._measure()
            if self.step % _SHOWN_STEPS == 0 or self.step == end:
                rate = (self.step - self.first) / (time.monotonic() - self.began)
                phase.advance(self.step - shown, f"{rate:,.1f} steps a second{self.record.latest}")
                shown = self.step
        with self.clock.counting("checkpoints"):
            self.film.save(end)  # first: a checkpoint without its frames could not be taken up
            self.learner.save(self.checkpoint)
        self.clock.save()

    def _one_step(self, end: int) -> None:
        learner, step = self.learner, self.step
        learning = step >= self.plan.random_steps
        actions = learner.guess()
        if learning:
            chosen = learner.act()
            # A seed that has diverged acts by chance: measurements tell of it, and the others go on.
            actions = np.where(np.isfinite(chosen), chosen, actions)
        with self.clock.counting("environments"):
            stepped = self.worlds.step(actions, step)
        self._see(stepped.records, self.everybody)
        if step + 1 < end:  # where the leg ends, all start over
            self._see(stepped.restarts, np.flatnonzero(stepped.over))
        learner.decided()
        if learning and step % self.plan.update_every == 0:
            learner.train(1)

    def _see(self, records: Records, who: Numbers) -> None:
        if len(who):
            self.learner.add(records, who)
            self.film.append(records, who)

    def _measure(self) -> None:
        """Play episodes with the agents as they are now, and write down what came of it."""
        compute.synchronize(self.learner.device)
        seconds = self.clock.seconds
        with self.clock.counting("evaluations"):
            found = self._evaluation()
        self.record.add(Measurement.of(self.step, seconds, self.learner.losses(), found))

    def _evaluation(self) -> Evaluation:
        plan = self.plan
        played = evaluation.play(
            self.learner.policy(),
            plan.env_id,
            plan.all_seeds,
            episodes=plan.episodes,
            repeat=plan.repeat,
            workers=plan.workers,
            world=self.world,
        )
        returns, lengths = np.full((plan.seeds, plan.episodes), np.nan), np.zeros((plan.seeds, plan.episodes), np.int64)
        for place, episode in played:
            lengths[place] = episode.length
            if episode.total is not None:
                returns[place] = episode.total
        known = reference(plan.env_id)
        return Evaluation(self.step, returns, lengths, None if known is None else known.score(returns))

    def _refresh(self, progress: Progress) -> None:
        """Where that is due."""
        if self.refreshing is not None and self.plan.is_refreshed(self.step):
            with self.clock.counting("latents"):
                self.refreshing.refresh(self.step, progress)
