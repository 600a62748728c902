"""Offline training as one resumable run in a folder: all arms and seeds at once, evaluated while they train."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.agents.agent import ALGORITHMS, Agent
from synther.agents.algorithm import AgentConfig
from synther.agents.drawing import precision_for
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.data.formats import gym_spaces
from synther.data.spaces import Box
from synther.data.time_limits import warn_of_time_limit
from synther.data.transitions import Transitions
from synther.envs.episodes import action_box
from synther.envs.evaluation import Evaluator
from synther.envs.making import Trusted, opened
from synther.errors import ConfigError, DataError, SyntherError
from synther.experiments import loop, tracking
from synther.experiments.record import Record, Schedule
from synther.experiments.results import Result
from synther.experiments.sources import TrainingData
from synther.experiments.spec import OfflineOptions
from synther.folder import Growth, RunFolder
from synther.plain import check_env_options, check_least
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

Bounds = tuple[NDArray[Any], NDArray[Any]]

GROWTH = Growth("updates")


@dataclass(frozen=True)
class Plan(OfflineOptions):
    """How a run trains and evaluates."""

    agent: AgentConfig = field(default_factory=TD3BCConfig)
    episodes: int = 10
    """Of each member and evaluation."""
    env_options: dict[str, Any] | None = None
    """That go to `gymnasium.make`; None are those of the data where that names the environment, and none elsewhere."""
    evaluate: bool = True
    checkpoint_seconds: float = 30.0
    """At least, between two checkpoints."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, seeds=1, seed=0, evaluate_every=1, episodes=1, workers=1)
        check_env_options(self.env_options or {})

    @property
    def algorithm(self) -> str:
        for name, (kind, _) in ALGORITHMS.items():
            if kind is type(self.agent):
                return name
        raise ConfigError(f"expected the config of one of {', '.join(ALGORITHMS)}, got {type(self.agent).__name__}")

    @property
    def measured(self) -> Schedule:
        return Schedule(self.evaluate_every, self.updates)

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        names = ("updates", "seeds", "seed", "evaluate_every", "episodes", "env_options", "precision")
        own = {"algorithm": self.algorithm, "agent": asdict(self.agent)}
        return own | {name: getattr(self, name) for name in names}


def train_to(plan: Plan, material: TrainingData, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Train every arm with every seed and write `log.jsonl`, `checkpoint.safetensors` and `result.json` into `folder`.

    Started again it goes on where it was stopped, and with more updates where it ended; with other data or options, or
    while another process trains there, it refuses to touch the folder.
    """
    progress = resolve(progress)
    warn_of_time_limit(material.real)
    device = compute.pick_device(plan.device)
    precision_for(plan.precision, device)  # which refuses others
    asked = plan.env_id is not None or plan.env_options is not None
    if plan.env_options is None:
        plan = replace(plan, env_options=(material.real.env_options if plan.env_id is None else None) or {})
    plan = replace(plan, agent=plan.agent.over(plan.updates))
    env_id, bounds = _environment(plan, material.real, asked)
    for arm in material.agent_arms():
        arm.counts(plan.agent.batch_size)
    for name, table in material.at_hand().items():  # what is wrong with them is told before there is a folder
        _rows_of([table], [name], bounds, torch.device("cpu"))
    tracking.check(plan.tensorboard, plan.wandb)
    described = plan.description() | material.description() | {"env_id": env_id, "device": device.type}
    run = RunFolder(folder, growth=GROWTH)
    with run.work(described, lambda: Result.after(plan.updates, run.result) is not None) as unfinished:
        if unfinished:
            arms = list(material.arms)
            with tracking.Tracking(folder, arms, tensorboard=plan.tensorboard, wandb=plan.wandb) as tracked:
                rows = _rows_of(material.tables(folder, progress), material.names, bounds, device)
                members = [Member(seed, arm) for arm in material.agent_arms() for seed in plan.all_seeds]
                agent = Agent(plan.agent, rows, members, precision=plan.precision)
                checkpoint = folder / "checkpoint.safetensors"
                loop.take_up(agent, checkpoint)
                record = Record(folder, plan.measured, agent.updates, arms, plan.all_seeds, tracked, again=True)
                seconds = plan.checkpoint_seconds
                with _players(plan, env_id, members) as evaluator:
                    result = loop.train(agent, record, checkpoint, evaluator, progress, checkpoint_seconds=seconds)
            run.finish(result.to_json())
        else:
            log.info("%s is finished already", folder)
    return Result.read(run.result)


def _rows_of(tables: Sequence[Transitions], names: Sequence[str], bounds: Bounds | None, device: torch.device) -> Rows:
    low, high = bounds or (None, None)
    return Rows(tables, device=device, low=low, high=high, names=names)


def _players(plan: Plan, env_id: str | None, members: list[Member]) -> AbstractContextManager[Evaluator | None]:
    if env_id is None:
        return nullcontext()
    seeds = [member.seed for member in members]
    return Evaluator(env_id, seeds, episodes=plan.episodes, workers=plan.workers, options=plan.env_options)


def _environment(plan: Plan, real: Transitions, asked: bool) -> tuple[str | None, Bounds | None]:
    """The environment that evaluates, if one can, and the bounds of the actions, if anybody knows them.

    One that was `asked` for must be there.
    """
    bounds = _bounds_of(real)
    env_id = real.env_id if plan.env_id is None else Trusted(plan.env_id)
    if env_id is None and plan.evaluate:
        log.warning("the data names no environment: training goes without evaluation; --env-id would name one")
    if env_id is None or (bounds is not None and not plan.evaluate):
        return None, bounds
    try:
        with opened(env_id, **plan.env_options or {}) as env:
            box = action_box(env, env_id)
            sizes = gym_spaces.width(env.observation_space), len(box[0])
    except SyntherError as error:
        if asked:
            raise
        if plan.evaluate:
            log.warning("training goes without evaluation: %s", error)
        return None, bounds
    own = box if np.isfinite(box).all() else None  # an unbounded one says nothing
    if not plan.evaluate:
        return None, bounds or own
    found = real.observation.shape[1], real.action.shape[1]
    if sizes != found:
        raise DataError(
            f"{env_id} has {sizes[0]} observation and {sizes[1]} action columns, the data {found[0]} and {found[1]}: "
            "name another environment with --env-id, or train with --no-evaluate"
        )
    if bounds is None and own is None:
        log.warning("%s has no bounds of actions, nor has the data: they are taken to lie between -1 and 1", env_id)
    if bounds is not None and not np.allclose(bounds, box, rtol=1e-4):
        log.warning(
            "actions of the data lie between %s and %s, those of %s between %s and %s: agents act within the former",
            *(bound.tolist() for bound in bounds),
            env_id,
            *(bound.tolist() for bound in box),
        )
    return env_id, bounds or own


def _bounds_of(real: Transitions) -> Bounds | None:
    """Of the actions, where the data knows them."""
    boxes = [part for part in real.action_space or () if isinstance(part, Box)]
    low, high = (np.array([bound for part in boxes for bound in getattr(part, end)]) for end in ("low", "high"))
    return (low, high) if boxes and np.isfinite([low, high]).all() else None
