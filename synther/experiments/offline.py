"""Offline training as a resumable run in a folder: all arms and seeds at once, evaluated while they train."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute, trackers
from synther.agents.agent import ALGORITHMS, Agent, check_critics
from synther.agents.algorithm import Shape, n_step_config
from synther.agents.rounds import precision_for
from synther.agents.rows import Member, Rows
from synther.data import gym_spaces
from synther.data.episodes import hold_out
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.datasets import Dataset
from synther.datasets.tasks import EPISODES
from synther.envs.episodes import action_box
from synther.envs.evaluation import Evaluator
from synther.envs.making import Trusted, opened
from synther.errors import DataError, SyntherError
from synther.experiments import loop
from synther.experiments.results import Result
from synther.experiments.sources import REAL, Generated, Given, Source, TrainingData, agent_guide, rewarded
from synther.experiments.spec import Place, PolicyGuidance
from synther.experiments.specs import OfflineRun
from synther.folder import RunFolder, key_of
from synther.locks import owned
from synther.progress import Progress, resolve
from synther.synthesizer.time_limits import warn_of_time_limit

log = logging.getLogger(__name__)

Bounds = tuple[NDArray[Any], NDArray[Any]]

_DESCRIBED = ("updates", "seeds", "seed", "evaluate_every", "episodes", "env_options", "precision")
"""Options that the result depends on, in addition to the agent and the data."""
_FIRST_SEED = 10_000
"""Added to the seed of the agents that are trained first, so that their initial weights differ from those of others."""


def train_to(
    spec: OfflineRun, material: TrainingData, folder: Path | str, *, progress: Progress | bool = True
) -> Result:
    """Train every arm with every seed and write `log.jsonl`, `checkpoint.safetensors` and `result.json` into `folder`.

    A second call resumes the run. With more updates, it continues a finished run. It raises an error if the folder
    holds a run with other data or options, or if another process is training there.
    """
    folder, progress = Path(folder), resolve(progress)
    warn_of_time_limit(material.real)
    device = compute.pick_device(spec.device)
    precision_for(spec.precision, device)  # raises an error for a precision that the device does not have
    is_required = spec.env_id is not None or spec.env_options is not None
    if spec.env_options is None:
        spec = replace(spec, env_options=(material.real.env_options if spec.env_id is None else None) or {})
    spec, config = replace(spec, episodes=spec.episodes or EPISODES), spec.config.over(spec.updates)
    env_id, bounds = _environment(spec, material.real, is_required)
    ends: dict[str, Any] = dict(zip(("low", "high"), bounds or (None, None), strict=True))
    for arm in material.agent_arms():
        arm.counts(config.batch_size)
    given = {name: source.given for name, source in material.others.items() if isinstance(source, Given)}
    for name, table in {REAL: material.real, **given}.items():  # raises errors before a folder is created
        Rows([table], device=torch.device("cpu"), names=[name], **ends, discount=_own_discount([table], config))
    algorithm, n = ALGORITHMS.get(spec.algorithm), spec.n_step
    sizes = material.real.observation.shape[1], material.real.action.shape[1]
    one = n_step_config(algorithm, config, n)
    tried = algorithm(one, Shape(*sizes, (spec.seed,), torch.device("cpu")))  # also raises errors early
    if material.held_out is not None:
        check_critics(spec.algorithm, tried)
    trackers.check(spec.tensorboard, spec.wandb)
    described = {
        "algorithm": spec.algorithm,
        "agent": config.described(),
        **{name: getattr(spec, name) for name in _DESCRIBED},
        **material.description(),
        "env_id": env_id,
        "device": device.type,
        **({} if n == 1 else {"n_step": n}),
    }
    material = material.over_steps(n, getattr(config, "discount", 1.0))
    run = RunFolder(folder, growth=spec.growth)
    with run.work(described, lambda: Result.after(spec.updates, run.result) is not None) as unfinished:
        if unfinished:
            tables = material.tables(folder, progress)
            ends |= {"next_actions": algorithm.needs_next_action, "discount": _own_discount(tables, config)}
            rows = Rows(tables, device=device, names=material.names, **ends)
            members = [Member(seed, arm) for arm in material.agent_arms() for seed in spec.all_seeds]
            held_out = None if material.held_out is None else len(tables) - 1
            agent = Agent(config, rows, members, precision=spec.precision, n_step=n, held_out=held_out)
            how: dict[str, Any] = {"episodes": spec.episodes, "workers": spec.workers, "options": spec.env_options}
            seeds = [member.seed for member in members]
            with nullcontext() if env_id is None else Evaluator(env_id, seeds, **how) as evaluator:
                arms = list(material.arms)
                result = loop.train(agent, spec, folder, arms, spec.all_seeds, progress, evaluator=evaluator)
            run.finish(result.to_json())
    return Result.read(run.result)


def _own_discount(tables: Sequence[Transitions], config: Any) -> float | None:
    """Return the discount for tables without a `discount` field, or None if no table has this field."""
    return float(getattr(config, "discount", 1.0)) if any("discount" in table.extra for table in tables) else None


def _environment(spec: OfflineRun, real: Transitions, is_required: bool) -> tuple[str | None, Bounds | None]:
    """Return the environment for evaluations and the bounds of the actions. Each is None if it is not known. If the
    environment cannot be created, raise an error if it `is_required`, or else log a warning."""
    boxes = [part for part in real.action_space or () if isinstance(part, Box)]
    own = [np.array([bound for part in boxes for bound in getattr(part, end)]) for end in ("low", "high")]
    bounds = (own[0], own[1]) if boxes and np.isfinite(own).all() else None
    env_id = real.env_id if spec.env_id is None else Trusted(spec.env_id)
    if env_id is None and spec.evaluate:
        log.warning("the data names no environment: training without evaluation (set one with --env-id)")
    if env_id is None or (bounds is not None and not spec.evaluate):
        return None, bounds
    try:
        with opened(env_id, **spec.env_options or {}) as env:
            box = action_box(env, env_id)
            sizes = gym_spaces.width(env.observation_space), len(box[0])
    except SyntherError as error:
        if is_required:
            raise
        if spec.evaluate:
            log.warning("training without evaluation: %s", error)
        return None, bounds
    finite = box if np.isfinite(box).all() else None  # infinite bounds count as no bounds
    if not spec.evaluate:
        return None, bounds or finite
    found = real.observation.shape[1], real.action.shape[1]
    if sizes != found:
        columns = f"{sizes[0]} observation and {sizes[1]} action columns, the data {found[0]} and {found[1]}"
        raise DataError(f"{env_id} has {columns}: name another one with --env-id, or train with --no-evaluate")
    if bounds is None and finite is None:
        log.warning("neither %s nor the data has action bounds: -1 and 1 are assumed", env_id)
    if bounds is not None and not np.allclose(bounds, box, rtol=1e-4):
        ends, there = ([bound.tolist() for bound in each] for each in (bounds, box))
        text = "action bounds of the data are %s, but those of %s are %s: agents use the bounds of the data"
        log.warning(text, ends, env_id, there)
    return env_id, bounds or finite


def material_of(spec: OfflineRun, dataset: Dataset, place: Place) -> TrainingData:
    """Return the data that the arms of a run learn from. Generators are fitted on the original rewards, so that all
    algorithms share them. The changes of rewards that some algorithms need are applied to the rows afterwards."""
    rows = dataset.rows if spec.fraction is None else dataset.rows.subsample(spec.fraction, spec.seed)
    rows, held_out = hold_out(rows, spec.holdout, spec.seed)
    real = dataset.rows_for(spec.algorithm, rows)
    unseen = None if held_out is None else dataset.rows_for(spec.algorithm, held_out)
    others: dict[str, Source] = {}
    for name, recipe in spec.sources.items():
        source = recipe.source(rows, place, spec.seed)
        if recipe.policy is not None:
            assert isinstance(source, Generated)
            seen = rewarded(source, dataset, spec.algorithm) if recipe.policy.learns_from == "synthetic" else None
            first: dict[str, Any] = {"seed": _FIRST_SEED + spec.seed, "evaluate": False, "tensorboard": "off"}
            first |= {"seeds": recipe.policy.seeds, "updates": recipe.policy.updates, "device": place.device}
            agents = replace(spec.on(dataset), **first)
            source = PolicyRows(source, agents, TrainingData.mixed(real, seen), recipe.policy)
        others[name] = rewarded(source, dataset, spec.algorithm)
    return TrainingData(real, others, spec.arms, unseen)


@dataclass(frozen=True)
class PolicyRows:
    """Rows of a diffusion model with guidance towards the actions of `agents`, which take turns (Jackson et al. 2024).

    NOTE[paper]: Jackson et al. generate rows again every 10,000 updates, for the current agent. Here the agents are
    first trained to the end, and other agents then learn from the rows. The trained agents are kept in the store of the
    generators. All sources with the same agents share them.
    """

    source: Generated
    agents: OfflineRun
    learned: TrainingData
    """The data that the agents learn from."""
    policy: PolicyGuidance

    def check(self, real: Transitions) -> None:
        self.source.check(real)

    def description(self) -> dict[str, Any]:
        own = {"strength": self.policy.strength, "std": self.policy.std, "agents": self._described()}
        return {**self.source.description(), "policy": own}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        if self.policy.strength == 0:  # no agents are needed
            return self.source.rows(file, progress)
        folder = self.source.store / f"agents-{key_of(self._described())}"
        with owned(folder.with_suffix(".lock"), patience=math.inf):
            train_to(self.agents, self.learned, folder, progress=progress)
        guide = partial(agent_guide, folder / loop.CHECKPOINT, strength=self.policy.strength, std=self.policy.std)
        return self.source.rows(file, progress, guide)

    def _described(self) -> dict[str, Any]:
        """Return all options and data that the agents depend on."""
        names = ("algorithm", "updates", "seeds", "seed", "evaluate_every", "precision", "n_step")
        own = {name: getattr(self.agents, name) for name in names}
        own |= {"agent": self.agents.config.described(), "device": compute.pick_device(self.agents.device).type}
        return own | self.learned.description()
