"""Online training of pixel agents, as one resumable run in a folder: every seed acts in a world drawn for it.

They act and learn as those of `online.py` do, in segments (see `loop.Acting`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther import compute
from synther.agents.drq_v2 import DrQv2Config
from synther.envs.pixels import REPEAT, SIZE, PixelEnv
from synther.errors import ConfigError
from synther.experiments import tracking
from synther.experiments.evaluation import Over, evaluate_pixels
from synther.experiments.experience import FrameExperience, replayed
from synther.experiments.loop import Acting, Evaluations
from synther.experiments.online import Plan
from synther.experiments.record import Clock, Record
from synther.experiments.refresh_latents import LatentRefreshing, LatentUpsampling
from synther.experiments.results import Result
from synther.folder import RunFolder
from synther.pixels.learner import PixelLearner
from synther.pixels.policy import PixelPolicy
from synther.pixels.ring import Numbers
from synther.pixels.vector_env import PixelVectorEnv, Records
from synther.plain import check_least
from synther.progress import Progress, resolve

__all__ = ["LatentUpsampling", "PixelPlan", "train_to"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PixelPlan(Plan):
    """How a run acts, learns and evaluates. The numbers are DrQ-v2's.

    A step is one decision in the world of every seed, whose action is taken `repeat` times.
    """

    agent: DrQv2Config = field(default_factory=DrQv2Config)  # type: ignore[assignment]  # another agent than of states
    upsampling: LatentUpsampling | None = None
    learning_starts: int = field(default=2_000, kw_only=True)
    update_every: int = 2
    """Steps for one update."""
    capacity: int = 1_000_000
    """Frames of each seed that are kept."""
    evaluate_every: int = field(default=10_000, kw_only=True)
    repeat: int = REPEAT
    size: int = SIZE
    """Pixels of a side of the frames."""
    precision: compute.Precision = field(default="auto", kw_only=True)  # type: ignore[assignment]  # convolutions use bf16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, update_every=1, repeat=1, size=1)
        if min(self.learning_starts, self.segment_after(0)) < self.agent.nstep < self.steps:
            raise ConfigError(
                f"agents learn from {self.agent.nstep} steps at a time (agent.nstep): learning_starts, "
                "checkpoint_every and refresh_every must be at least that"
            )
        if self.env_options:
            raise ConfigError(f"tasks of the dm_control suite take no env_options, got {self.env_options}")

    @property
    def name(self) -> str:
        return "drq_v2" if self.upsampling is None else "drq_v2_synther"

    def is_refreshed(self, step: int) -> bool:
        """Nor are generators fitted before anybody has begun to learn to see."""
        return step > self.learning_starts and super().is_refreshed(step)

    @property
    def frames(self) -> int:
        """For which there is room, resets included: for all of them where episodes have twenty decisions or more.

        Only there is a run that was extended the same as one that was as long from the start.
        """
        return min(self.capacity, self.steps + self.steps // 20 + len(self.segments_until(self.steps)))

    def description(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("update_every", "repeat", "size")}
        return {"kind": "online_pixels", **super().description(), **own}


_COLOURS = 3
"""Channels of a frame."""


def train_to(
    plan: PixelPlan, folder: Path, *, progress: Progress | bool = True, make_env: Callable[..., PixelEnv] = PixelEnv
) -> Result:
    """Let every seed act and learn, and leave its log, agents, frames and `result.json` in `folder`.

    Started again it goes on where it was stopped, and with more steps where it ended; with other options, or while
    another process trains there, it refuses to touch the folder. `world`
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
    about: dict[str, Any] = {"size": plan.size, "repeat": plan.repeat, "processes": plan.workers, "make_env": make_env}
    with PixelVectorEnv(plan.env_id, plan.all_seeds, **about) as envs:
        learner = PixelLearner(
            plan.agent,
            plan.all_seeds,
            (_COLOURS, plan.size, plan.size),
            envs.low,
            envs.high,
            capacity=plan.frames,
            device=device,
            precision=plan.precision,
        )  # what is wrong with the plan is told before there is a folder
        with run.work(described, lambda: Result.after(plan.steps, run.result) is not None) as unfinished:
            if unfinished:
                with tracking.Tracking(folder, [plan.name], tensorboard=plan.tensorboard, wandb=plan.wandb) as tracked:
                    result = _Acting(plan, envs, learner, folder, tracked, make_env).run(resolve(progress))
                run.finish(result.to_json())
    return Result.read(run.result)


class _Playing:
    """Evaluates at once: worlds are drawn by the processes that would play meanwhile."""

    def __init__(self, plan: PixelPlan, clock: Clock, make_env: Callable[..., PixelEnv]) -> None:
        self._plan, self._clock, self._make_env = plan, clock, make_env

    def start(self, policy: PixelPolicy, number: int) -> Over:
        plan = self._plan
        with self._clock.counting("evaluations"):
            found = evaluate_pixels(
                policy,
                plan.env_id,
                plan.all_seeds,
                number,
                episodes=plan.episodes,
                repeat=plan.repeat,
                workers=plan.workers,
                make_env=self._make_env,
            )
        return Over(found)


class _Acting(Acting):
    """Pixel agents, which are kept in `frames`."""

    shown = 20

    def __init__(
        self,
        plan: PixelPlan,
        envs: PixelVectorEnv,
        learner: PixelLearner,
        folder: Path,
        tracked: tracking.Tracking,
        make_env: Callable[..., PixelEnv],
    ) -> None:
        self.envs, self.update_every = envs, plan.update_every
        self.frames = FrameExperience(folder / "frames", plan.all_seeds, envs, plan.env_id, plan.repeat)
        self.everybody: Numbers = np.arange(plan.seeds)
        self.checkpoint = folder / "checkpoint.safetensors"
        if self.checkpoint.exists():  # the learner and its frames are brought to where it was written
            learner.load(self.checkpoint)
            for segment in self.frames.segments(plan.segments_until(learner.decisions)):
                for records, who in replayed(segment):
                    learner.add(records, who)
            log.info("going on after %s steps", f"{learner.decisions:,}")
        how = plan.upsampling
        self.refreshing = None if how is None else LatentRefreshing(how, learner, folder, plan.precision)
        record = Record(folder, plan.measured, learner.decisions, [plan.name], plan.all_seeds, tracked)
        playing = _Playing(plan, record.clock, make_env)
        super().__init__(plan, learner, record, Evaluations(playing, record, freeze=lambda policy: policy))

    @property
    def step(self) -> int:
        decisions: int = self.learner.decisions
        return decisions

    def begin(self) -> None:
        self._see(self.envs.reset(self.step), self.everybody)

    def choose(self) -> NDArray[np.float32]:
        chosen: NDArray[np.float32] = self.learner.act()
        return chosen

    def take(self, actions: NDArray[np.float32], end: int) -> None:
        with self.clock.counting("environments"):
            stepped = self.envs.step(actions, self.step)
        self._see(stepped.records, self.everybody)
        if self.step + 1 < end:  # where the segment ends, all start over
            self._see(stepped.restarts, np.flatnonzero(stepped.over))
        self.learner.decided()

    def learn(self, step: int) -> None:
        if step % self.update_every == 0:
            self.learner.train(1)

    def save(self) -> None:
        """Frames first: a checkpoint without them could not be taken up."""
        self.frames.save(self.step)
        self.learner.save(self.checkpoint)

    def restore(self, progress: Progress) -> None:
        """Nothing is left of a refresh but the heads, which are in the checkpoint."""

    def refresh(self, progress: Progress) -> None:
        if self.refreshing is not None:
            with self.clock.counting("latents"):
                self.refreshing.refresh(self.step, progress)

    def _see(self, records: Records, who: Numbers) -> None:
        if len(who):
            self.learner.add(records, who)
            self.frames.append(records, who)
