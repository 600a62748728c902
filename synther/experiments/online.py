"""Online training as one resumable run in a folder: every seed acts in an environment and learns from rows of its own.

They act and learn in segments (see `loop.Acting`).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.agents.learner import Learner
from synther.agents.rounds import precision_for
from synther.agents.sac import SAC_CONFIG, SACConfig
from synther.data import formats
from synther.envs.evaluation import Evaluator
from synther.envs.making import Trusted
from synther.envs.vector_env import VectorEnv
from synther.errors import DataError, SyntherError
from synther.experiments import tracking
from synther.experiments.experience import Experience
from synther.experiments.loop import Acting, Evaluations
from synther.experiments.record import Record, Schedule
from synther.experiments.refresh import Refreshing, Upsampling
from synther.experiments.results import Result
from synther.experiments.spec import OnlineOptions
from synther.folder import Growth, RunFolder
from synther.plain import check_env_options, check_least
from synther.progress import Progress, resolve
from synther.replay.columns import Columns

__all__ = ["Plan", "Upsampling", "train_to"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan(OnlineOptions):
    """How a run acts, learns and evaluates.

    A step is one decision in the environment of every seed. Where a segment ends, every `checkpoint_every` steps and at
    every refresh, all environments start over, whether the run is stopped there or not: no state of a simulator has to
    be kept for a run to be taken up again.
    """

    env_id: str
    agent: SACConfig = SAC_CONFIG
    upsampling: Upsampling | None = None
    capacity: int = 1_000_000
    """Real rows of each seed that are kept."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """That go to `gymnasium.make`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_id", Trusted(self.env_id))
        check_least(self, seed=0, learning_starts=0, steps=1, seeds=1, capacity=1, checkpoint_every=1)
        check_least(self, evaluate_every=1, episodes=1, workers=1)
        check_env_options(self.env_options)

    @property
    def name(self) -> str:
        """What the run is called in logs and tables."""
        agent = "redq" if self.agent.num_min_critics < self.agent.num_critics else "sac"
        return agent if self.upsampling is None else f"{agent}_synther"

    def is_refreshed(self, step: int) -> bool:
        """Whether generators are fitted after so many steps. At the very end nobody would learn from their rows."""
        return self.upsampling is not None and 0 < step < self.steps and step % self.upsampling.refresh_every == 0

    def doubts(self) -> Iterator[str]:
        """What nobody means who plans so, but for a trial."""
        if self.learning_starts >= self.steps:
            begins = f"learning starts after {self.learning_starts:,} steps (--learning-starts)"
            yield f"nothing is learned: {begins}, and there are {self.steps:,}"
        if self.upsampling is not None:
            every = self.upsampling.refresh_every
            if not self.is_refreshed((self.steps - 1) // every * every):
                yield f"no generator is fitted: that is done every {every:,} steps (--refresh-every), of {self.steps:,}"

    def segment_after(self, step: int) -> int:
        """Where the segment ends that begins after so many steps."""
        every = [self.checkpoint_every, *([] if self.upsampling is None else [self.upsampling.refresh_every])]
        return min(self.steps, *((step // length + 1) * length for length in every))

    @property
    def growth(self) -> Growth:
        """A run can go on with more steps if a segment ends where it ended: there the environments start over."""
        why = f"one can go on from a multiple of {self.checkpoint_every:,} steps (--checkpoint-every)"
        return Growth("steps", lambda step: "" if self.segments_until(step)[-1] == step else why)

    def segments_until(self, step: int) -> list[int]:
        """Ends of the segments up to a step that is one of them."""
        ends, end = [], 0
        while end < step:
            end = self.segment_after(end)
            ends.append(end)
        return ends

    @property
    def measured(self) -> Schedule:
        return Schedule(self.evaluate_every, self.steps, "env_steps")

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        names = ("env_id", "env_options", "steps", "seeds", "seed", "learning_starts", "capacity", "checkpoint_every")
        own = {name: getattr(self, name) for name in (*names, "evaluate_every", "episodes", "precision")}
        upsampling = None if self.upsampling is None else asdict(self.upsampling)
        return {**own, "agent": asdict(self.agent), "upsampling": upsampling}


_ROWS = "experience"


def train_to(plan: Plan, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Let every seed act and learn, and leave its log, agents, rows (`replay.npz`) and `result.json` in `folder`.

    Started again it goes on where it was stopped, and with more steps where it ended; with other options, or while
    another process trains there, it refuses to touch the folder. Its log and result count in `env_steps`.
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
    with VectorEnv(plan.env_id, plan.all_seeds, options=plan.env_options) as envs:
        learner = _learner(plan, envs, device)  # what is wrong with the plan is told before there is a folder
        tracking.check(plan.tensorboard, plan.wandb)
        with run.work(described, lambda: Result.after(plan.steps, run.result) is not None) as unfinished:
            if unfinished:
                with (
                    tracking.Tracking(folder, [plan.name], tensorboard=plan.tensorboard, wandb=plan.wandb) as tracked,
                    _players(plan) as evaluator,
                ):
                    result = _Acting(plan, envs, learner, evaluator, folder, tracked).run(progress)
                run.finish(result.to_json())
                shutil.rmtree(folder / _ROWS, ignore_errors=True)  # replay.npz has them all
    return Result.read(run.result)


def _players(plan: Plan) -> Evaluator:
    return Evaluator(
        plan.env_id, plan.all_seeds, episodes=plan.episodes, workers=plan.workers, options=plan.env_options
    )


def _learner(plan: Plan, envs: VectorEnv, device: torch.device) -> Learner:
    upsampling = plan.upsampling
    return Learner(
        plan.agent,
        plan.all_seeds,
        envs.observation_size,
        envs.low,
        envs.high,
        capacity=min(plan.capacity, plan.steps),
        samples=0 if upsampling is None else upsampling.samples,
        ratio=0.0 if upsampling is None else upsampling.ratio,
        device=device,
        precision=plan.precision,
    )


def _columns(envs: VectorEnv) -> Columns:
    return Columns(
        envs.observation_size,
        len(envs.low),
        action_space=envs.action_space,
        observation_space=envs.observation_space,
    )


class _Acting(Acting):
    """Agents of states, whose rows are kept in `experience`."""

    shown = 100

    def __init__(
        self,
        plan: Plan,
        envs: VectorEnv,
        learner: Learner,
        evaluator: Evaluator,
        folder: Path,
        tracked: tracking.Tracking,
    ) -> None:
        self.envs, self.own = envs, plan
        self.experience = Experience(folder / _ROWS, _columns(envs))
        self.checkpoint, self.replay = folder / "checkpoint.safetensors", folder / "replay.npz"
        if self.checkpoint.exists():  # learner and experience are brought to where it was written
            step = learner.load(self.checkpoint)
            self.experience.load(plan.segments_until(step), plan.seeds, self.replay)
            learner.add(self.experience.rows(step))
            log.info("going on after %s steps", f"{step:,}")
        how = plan.upsampling
        self.refreshing = None if how is None else Refreshing(how, plan.env_id, self.experience, learner, folder)
        record = Record(folder, plan.measured, self.step, [plan.name], plan.all_seeds, tracked)
        super().__init__(plan, learner, record, Evaluations(evaluator, record))

    @property
    def step(self) -> int:
        return self.experience.steps

    def run(self, progress: Progress) -> Result:
        """An environment that fails, here or in an evaluation, takes no rows with it."""
        try:
            result = super().run(progress)
        except SyntherError as error:
            if not self.step:
                raise
            self._write_rows()
            raise DataError(f"{error}; the {self.step:,} steps before it are in {self.replay}") from error
        self._write_rows()
        return result

    def begin(self) -> None:
        self.envs.reset(self.step)

    def choose(self) -> NDArray[np.float32]:
        chosen: NDArray[np.float32] = self.learner.act(self.envs.observations)
        return chosen

    def take(self, actions: NDArray[np.float32], end: int) -> None:
        began = time.monotonic()
        stepped = self.envs.step(actions, self.step)
        self.clock.add("environments", time.monotonic() - began)
        self.experience.append(stepped.rows, stepped.timeouts)
        self.learner.add(stepped.rows)

    def learn(self, step: int) -> None:
        self.learner.train()

    def save(self) -> None:
        """Rows first: a checkpoint without them could not be taken up."""
        self.experience.cut()
        self.experience.save()
        self.learner.save(self.checkpoint)

    def restore(self, progress: Progress) -> None:
        if self.refreshing is not None:
            self.refreshing.restore(self.step, progress, rows=not self.plan.is_refreshed(self.step))

    def refresh(self, progress: Progress) -> None:
        if self.refreshing is not None:
            began = time.monotonic()
            self.refreshing.refresh(self.step, progress)
            self.clock.add("generators", time.monotonic() - began)

    def _write_rows(self) -> None:
        rows = self.experience.transitions(self.own.env_id)
        formats.write(replace(rows, env_options=self.own.env_options), self.replay)
