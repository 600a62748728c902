"""Online training as a resumable run in a folder: every seed acts in an environment and learns from its own data.
State agents and pixel agents share the loop, see `loop.Acting`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther import compute, formats, trackers
from synther.agents.learner import Learner
from synther.data.episodes import n_step_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.envs.evaluation import Evaluation, Evaluator
from synther.envs.making import Trusted
from synther.envs.pixels import PixelEnv
from synther.envs.vector_env import VectorEnv
from synther.errors import ConfigError, DataError, SyntherError
from synther.experiments.loop import CHECKPOINT, Acting, Actions, Evaluations
from synther.experiments.refresh import Copying, LatentRefreshing, Refreshing
from synther.experiments.results import Result
from synther.experiments.specs import OnlinePixelRun, OnlineRun
from synther.folder import RunFolder
from synther.pixels.evaluation import evaluate
from synther.pixels.experience import FrameExperience, replayed
from synther.pixels.learner import PixelLearner
from synther.pixels.policy import PixelPolicy
from synther.pixels.ring import Numbers
from synther.pixels.vector_env import PixelVectorEnv, Records
from synther.progress import Progress, resolve
from synther.replay.columns import Columns
from synther.replay.experience import Experience

log = logging.getLogger(__name__)

_ROWS = "experience"
"""Folder of the rows of an unfinished run."""


def train_to(
    spec: OnlineRun,
    folder: Path | str,
    *,
    prior: Transitions | None = None,
    progress: Progress | bool = True,
    make_env: Callable[..., PixelEnv] = PixelEnv,
) -> Result:
    """Let every seed act and learn. Write log, agents, `result.json`, and `replay.npz` or frames into `folder`.

    A second call resumes the run. With more steps, it continues a finished run. It raises an error if the folder holds
    a run with other options, or if another process is training there. Log and result count time in `env_steps`. `prior`
    are rows of earlier data: half of the real rows of every batch come from it. `make_env` creates the environments of
    pixel agents, in other processes.
    """
    if (prior is None) != (spec.prior is None):
        raise ConfigError("prior data needs both a name (`prior` of the spec) and rows (`prior` of train_to)")
    spec, folder = replace(spec, env_id=Trusted(spec.env_id)), Path(folder)
    device = compute.pick_device(spec.device)
    described = spec.description() | {"device": device.type}
    if prior is not None:
        described["prior"] = fingerprint(prior)
    run = RunFolder(folder, growth=spec.growth)

    def finished() -> bool:
        return Result.after(spec.steps, run.result) is not None

    if finished():
        with run.work(described, finished):
            return Result.read(run.result)
    for doubt in spec.doubts():
        log.warning(doubt)
    trackers.check(spec.tensorboard, spec.wandb)
    made: Any
    if isinstance(spec, OnlinePixelRun):
        how: dict[str, Any] = {"size": spec.size, "repeat": spec.repeat, "shadow_size": spec.shadow_size}
        made = PixelVectorEnv(spec.env_id, spec.all_seeds, **how, processes=spec.workers, make_env=make_env)
    else:
        made = VectorEnv(spec.env_id, spec.all_seeds, options=spec.env_options)
    with made as envs:
        learner = _learner(spec, envs, device, prior)  # raises errors of wrong settings before a folder is created
        with run.work(described, finished) as unfinished:
            if unfinished:
                acting: RowActing | PixelActing
                if isinstance(spec, OnlinePixelRun):
                    acting = PixelActing(spec, envs, learner, folder, make_env)
                else:
                    acting = RowActing(spec, envs, learner, folder)
                with acting.record:
                    result = acting.run(resolve(progress))
                run.finish(result.to_json())
                shutil.rmtree(folder / _ROWS, ignore_errors=True)  # replay.npz has all rows
    return Result.read(run.result)


def _learner(spec: OnlineRun, envs: Any, device: torch.device, prior: Transitions | None) -> Any:
    how: dict[str, Any] = {"device": device, "precision": spec.precision}
    if isinstance(spec, OnlinePixelRun):
        frame = (3, spec.size, spec.size)  # three colours
        return PixelLearner(spec.config, spec.all_seeds, frame, envs.low, envs.high, capacity=spec.frames, **how)
    if spec.synthetic is not None:
        how |= {"samples": spec.synthetic.samples, "ratio": spec.synthetic.ratio}
    if prior is not None:
        prior.refuse_extra("a replay buffer")
        prior, columns = n_step_rows(prior, spec.n_step, spec.config.discount, whole=True), Columns.of(prior)
        found, expected = (columns.observation, columns.action), (envs.observation_size, len(envs.low))
        if found != expected:
            raise DataError(f"prior data has {found} observation and action columns, but {spec.env_id} has {expected}")
        how["prior"] = columns.pack(prior)
    how |= {"choices": envs.choices, "n_step": spec.n_step}
    size, capacity = envs.observation_size, min(spec.capacity, spec.steps)
    return Learner(spec.config, spec.all_seeds, size, envs.low, envs.high, capacity=capacity, **how)


class RowActing(Acting):
    """The training of state agents. Their rows are stored in `experience`."""

    shown = 100

    def __init__(self, spec: OnlineRun, envs: VectorEnv, learner: Learner, folder: Path) -> None:
        spaces: dict[str, Any] = {"action_space": envs.action_space, "observation_space": envs.observation_space}
        discrete = envs.choices is not None
        columns = Columns(envs.observation_size, len(envs.low), discrete, discrete, **spaces)
        self.experience = Experience(folder / _ROWS, columns)
        checkpoint, self.replay = folder / CHECKPOINT, folder / "replay.npz"
        if checkpoint.exists():  # restore learner and experience
            step = learner.load(checkpoint)
            self.experience.load(spec.segments_until(step), spec.seeds, self.replay)
            learner.add(*self.experience.rows())
        if spec.synthetic is not None:
            if spec.synthetic.copies:
                self.refreshing = Copying(spec.synthetic, self.experience, learner)
            else:
                self.refreshing = Refreshing(spec.synthetic, spec.env_id, self.experience, learner, folder)
        super().__init__(spec, envs, learner, folder)

    @property
    def step(self) -> int:
        return self.experience.steps

    def run(self, progress: Progress) -> Result:
        """Train up to the last step, and write all rows. The rows are also written if an environment fails."""
        spec = self.spec
        how: dict[str, Any] = {"episodes": spec.episodes, "workers": spec.workers, "options": spec.env_options}
        with Evaluator(spec.env_id, spec.all_seeds, **how) as evaluator:
            try:
                result = self.train(Evaluations(evaluator, self.record), progress)
            except SyntherError as error:
                if not self.step:
                    raise
                self._write_rows()
                raise DataError(f"{error}; the {self.step:,} steps before it are in {self.replay}") from error
        self._write_rows()
        return result

    def reset(self) -> None:
        self.envs.reset(self.step)

    def choose(self) -> Callable[[], Actions]:
        chosen: Callable[[], Actions] = self.learner.choose(self.envs.observations)
        return chosen

    def keep(self, stepped: Any, end: int) -> None:
        self.experience.append(stepped.rows, stepped.timeouts)
        self.learner.add(stepped.rows, stepped.timeouts | (self.step == end))  # all environments are reset at `end`

    def learn(self, step: int) -> None:
        self.learner.train()

    def save_data(self) -> None:
        self.experience.cut()
        self.experience.save()

    def _write_rows(self) -> None:
        rows = self.experience.transitions(self.spec.env_id)
        formats.write(replace(rows, env_options=self.spec.env_options or {}), self.replay)


class PixelActing(Acting):
    """The training of pixel agents. Their frames are stored in `frames`."""

    shown = 20

    def __init__(
        self,
        spec: OnlinePixelRun,
        envs: PixelVectorEnv,
        learner: PixelLearner,
        folder: Path,
        make_env: Callable[..., PixelEnv],
    ) -> None:
        self.learner, self.update_every = learner, spec.update_every
        drawn = {"env_id": spec.env_id, "action_repeat": spec.repeat, "shadow_size": spec.shadow_size}
        self.frames = FrameExperience(folder / "frames", spec.all_seeds, envs, **drawn)
        self.everybody: Numbers = np.arange(spec.seeds)
        checkpoint = folder / CHECKPOINT
        if checkpoint.exists():  # restore the learner and its frames
            learner.load(checkpoint)
            for segment in self.frames.segments(spec.segments_until(learner.decisions)):
                for records, who in replayed(segment):
                    learner.add(records, who)
        if spec.synthetic is not None:
            self.refreshing = LatentRefreshing(spec.synthetic, learner, folder, spec.precision)
        self._make_env = make_env
        super().__init__(spec, envs, learner, folder)

    @property
    def step(self) -> int:
        return int(self.learner.decisions)

    def run(self, progress: Progress) -> Result:
        return self.train(Evaluations(self, self.record, freeze=lambda policy: policy), progress)

    def start(self, policies: PixelPolicy, number: int) -> Future[Evaluation]:
        """Evaluate now, not in parallel to the training: all processes are needed to render the environments."""
        spec: Any = self.spec
        how = {"repeat": spec.repeat, "shadow_size": spec.shadow_size, "workers": spec.workers}
        with self.clock.counting("evaluations"):
            found = evaluate(policies, spec.env_id, spec.all_seeds, spec.episodes, make_env=self._make_env, **how)
        finished: Future[Evaluation] = Future()
        finished.set_result(found)
        return finished

    def reset(self) -> None:
        self._see(self.envs.reset(self.step), self.everybody)

    def choose(self) -> Callable[[], Actions]:
        chosen: Callable[[], Actions] = self.learner.choose()
        return chosen

    def keep(self, stepped: Any, end: int) -> None:
        self._see(stepped.records, self.everybody)
        if self.step + 1 < end:  # at the end of the segment all environments are reset
            self._see(stepped.restarts, np.flatnonzero(stepped.over))
        self.learner.decided()

    def learn(self, step: int) -> None:
        if step % self.update_every == 0:
            self.learner.train(1)

    def save_data(self) -> None:
        self.frames.save(self.step)

    def _see(self, records: Records, who: Numbers) -> None:
        if len(who):
            self.learner.add(records, who)
            self.frames.append(records, who)
