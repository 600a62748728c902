"""Offline training as one resumable run in a folder: all arms and seeds at once, evaluated while they train.

An evaluation is under way while the next updates are made, and is collected before the next begins. A checkpoint is
written at a measurement, when the log has all earlier ones. So a run that was killed goes on from its checkpoint, makes
that evaluation again if need be, and comes to the same result.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.agents.agent import ALGORITHMS, Agent
from synther.agents.algorithm import AgentConfig
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.envs.episodes import action_box
from synther.envs.evaluation import Evaluator, Pending
from synther.envs.making import opened
from synther.errors import ConfigError, DataError, SyntherError
from synther.experiments.folder import claim, read_object, write_object
from synther.experiments.frozen import frozen
from synther.experiments.measurements import Log, Measurement, Result
from synther.experiments.sources import Material
from synther.progress import Phase, Progress, resolve

log = logging.getLogger(__name__)

Bounds = tuple[NDArray[Any], NDArray[Any]]

_CHECKPOINT_SHARE = 0.05
"""Of the time, at most, that goes into checkpoints."""

_SHOWN_UPDATES = {"cpu": 100, "cuda": 1_000}
"""Updates between two movements of the display."""


@dataclass(frozen=True)
class Plan:
    """How a run trains and evaluates."""

    agent: AgentConfig = field(default_factory=TD3BCConfig)
    updates: int = 1_000_000
    seeds: int = 8
    seed: int = 0
    """The first of them; the others follow it."""
    evaluate_every: int = 5_000
    """Updates between two measurements; the last update is always measured."""
    episodes: int = 10
    """Of each member and evaluation."""
    env_id: str | None = None
    """The environment, where the data does not name it."""
    evaluate: bool = True
    workers: int | None = None
    """Processes that play; None leaves one core to the training."""
    device: str = "auto"
    precision: Literal["auto", "float32", "tf32"] = "auto"
    checkpoint_seconds: float = 30.0
    """At least, between two checkpoints."""

    def __post_init__(self) -> None:
        numbers = {"updates": 1, "seeds": 1, "seed": 0, "evaluate_every": 1, "episodes": 1, "workers": 1}
        for name, least in numbers.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")

    @property
    def algorithm(self) -> str:
        for name, (kind, _) in ALGORITHMS.items():
            if kind is type(self.agent):
                return name
        raise ConfigError(f"expected the config of one of {', '.join(ALGORITHMS)}, got {type(self.agent).__name__}")

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def next_measured(self, updates: int) -> int:
        """The first time after so many `updates` at which all is measured."""
        return min(self.updates, (updates // self.evaluate_every + 1) * self.evaluate_every)

    def number_of(self, updates: int) -> int:
        """Of the measurement after so many updates, counted from 1."""
        return -(-updates // self.evaluate_every)

    def measured_until(self, updates: int) -> list[int]:
        """When all has been measured after so many `updates`, of which the last was measured."""
        return [min(updates, number * self.evaluate_every) for number in range(1, self.number_of(updates) + 1)]

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        names = ("updates", "seeds", "seed", "evaluate_every", "episodes", "precision")
        own = {"algorithm": self.algorithm, "agent": asdict(self.agent)}
        return own | {name: getattr(self, name) for name in names}


def train_to(plan: Plan, material: Material, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Train every arm with every seed and write `log.jsonl`, `checkpoint.safetensors` and `result.json` into `folder`.

    Started again it goes on where it was stopped; with other data or options it refuses to touch the folder.
    """
    progress = resolve(progress)
    device = compute.pick_device(plan.device)
    env_id, bounds = _environment(plan, material.real)
    for arm in material.agent_arms():
        arm.counts(plan.agent.batch)
    _rows_of([material.real], bounds, torch.device("cpu"))  # what is wrong with them is told before there is a folder
    claim(folder, plan.description() | material.description() | {"env_id": env_id, "device": device.type})
    finished = folder / "result.json"
    if finished.exists():
        log.info("%s is finished already", folder)
        return Result.from_json(read_object(finished))
    rows = _rows_of(material.tables(folder, progress), bounds, device)
    members = [Member(seed, arm) for arm in material.agent_arms() for seed in plan.all_seeds]
    agent = Agent(plan.agent, rows, members, precision=plan.precision)
    with ExitStack() as stack:
        evaluator = None
        if env_id is not None:
            seeds = [member.seed for member in members]
            players = Evaluator(env_id, seeds, episodes=plan.episodes, workers=plan.workers)
            evaluator = stack.enter_context(players)
        result = _Training(plan, agent, evaluator, list(material.arms), folder).run(progress)
    write_object(finished, result.to_json())
    return result


def _rows_of(tables: list[Transitions], bounds: Bounds | None, device: torch.device) -> Rows:
    low, high = bounds or (None, None)
    return Rows(tables, device=device, low=low, high=high)


class _Training:
    """From wherever the folder's checkpoint stands to the end."""

    def __init__(self, plan: Plan, agent: Agent, evaluator: Evaluator | None, arms: list[str], folder: Path) -> None:
        self.plan, self.agent, self.evaluator, self.arms = plan, agent, evaluator, arms
        self.checkpoint = folder / "checkpoint.safetensors"
        if self.checkpoint.exists():
            agent.load(self.checkpoint)
            log.info("going on after %s updates", f"{agent.updates:,}")
        self.log = Log(folder / "log.jsonl", plan.measured_until(agent.updates))
        self.pending: _Begun | None = None
        self.began, self.first = time.monotonic(), agent.updates
        self.seconds_before = self.log.measurements[-1].seconds if self.log.measurements else 0.0
        self.saved, self.save_seconds = self.began, 0.0

    def run(self, progress: Progress) -> Result:
        agent, plan = self.agent, self.plan
        if len(self.log.measurements) < plan.number_of(agent.updates):  # stopped before it was evaluated
            self._measure()
        with progress.phase("train", plan.updates, agent.updates) as phase:
            while agent.updates < plan.updates:
                self._train(plan.next_measured(agent.updates), phase)
                self._measure()
                self._save()
            self._collect()
        return Result.of(self.log.measurements, self.arms)

    def _train(self, end: int, phase: Phase) -> None:
        while self.agent.updates < end:
            count = min(_SHOWN_UPDATES[self.agent.device.type], end - self.agent.updates)
            self.agent.train(count)
            rate = (self.agent.updates - self.first) / (time.monotonic() - self.began)
            phase.advance(count, f"{rate:,.0f} updates a second{self._latest()}")

    def _measure(self) -> None:
        """Begin to evaluate the agent as it is now, after the evaluation before has come to its end."""
        losses, updates = self.agent.losses(), self.agent.updates  # waits for the device
        seconds = self.seconds_before + time.monotonic() - self.began
        self._collect()
        evaluation = None
        if self.evaluator is not None:
            evaluation = self.evaluator.start(frozen(self.agent.policy()), self.plan.number_of(updates))
        self.pending = _Begun(updates, seconds, losses, evaluation)

    def _collect(self) -> None:
        if self.pending is not None:
            self.log.append(self.pending.measurement())
            self.pending = None

    def _save(self) -> None:
        """The last checkpoint is the agent that the run leaves behind."""
        now = time.monotonic()
        wait = max(self.plan.checkpoint_seconds, self.save_seconds / _CHECKPOINT_SHARE)
        if now - self.saved >= wait or self.agent.updates == self.plan.updates:
            self.agent.save(self.checkpoint)
            self.saved = time.monotonic()
            self.save_seconds = self.saved - now

    def _latest(self) -> str:
        """The latest score of each arm, or return, for the display."""
        if not self.log.measurements:
            return ""
        result = Result.of(self.log.measurements[-1:], self.arms)
        stands = {arm: result.final(arm) for arm in self.arms}
        shown = [f"{arm} {(s.spread_of_scores or s.spread_of_returns).mean:.1f}" for arm, s in stands.items() if s]
        return "".join(f", {text}" for text in shown)


@dataclass(frozen=True)
class _Begun:
    """A measurement whose episodes are being played."""

    updates: int
    seconds: float
    losses: dict[str, NDArray[np.float32]]
    evaluation: Pending | None

    def measurement(self) -> Measurement:
        """Wait for its episodes."""
        evaluation = None if self.evaluation is None else self.evaluation.result()
        return Measurement.of(self.updates, self.seconds, self.losses, evaluation)


def _environment(plan: Plan, real: Transitions) -> tuple[str | None, Bounds | None]:
    """The environment that evaluates, if one can, and the bounds of the actions, if anybody knows them.

    One that was asked for must be there.
    """
    bounds = _bounds_of(real)
    env_id = plan.env_id or real.env_id
    if env_id is None and plan.evaluate:
        log.warning("the data names no environment: training goes without evaluation; --env-id would name one")
    if env_id is None or (bounds is not None and not plan.evaluate):
        return None, bounds
    try:
        with opened(env_id) as env:
            box = action_box(env, env_id)
            sizes = _flat_size(env.observation_space), len(box[0])
    except SyntherError as error:
        if plan.env_id is not None:
            raise
        if plan.evaluate:
            log.warning("training goes without evaluation: %s", error)
        return None, bounds
    if not plan.evaluate:
        return None, bounds or box
    found = real.observation.shape[1], real.action.shape[1]
    if sizes != found:
        raise DataError(
            f"{env_id} has {sizes[0]} observation and {sizes[1]} action columns, the data {found[0]} and {found[1]}: "
            "name another environment with --env-id, or train with --no-evaluate"
        )
    return env_id, bounds or box


def _bounds_of(real: Transitions) -> Bounds | None:
    """Of the actions, where the data knows them."""
    boxes = [part for part in real.action_space or () if isinstance(part, Box)]
    low, high = (np.array([bound for part in boxes for bound in getattr(part, end)]) for end in ("low", "high"))
    return (low, high) if boxes and np.isfinite([low, high]).all() else None


def _flat_size(space: Any) -> int:
    import gymnasium

    return int(gymnasium.spaces.flatdim(space))
