"""Assess synthetic rows against real ones, and the model that made them if it is known, and write a report."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther.assess import report as pages
from synther.assess.assessment import Assessment, Effort, Process
from synther.assess.dynamics import Simulator, dynamics_error
from synther.assess.fidelity import at_most, compare
from synther.assess.judge import assess
from synther.assess.process import MAX_LEVELS, MAX_ROWS, project
from synther.assess.report.efforts import OF_SAMPLERS
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.diffusion import edm
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.durable import check_folder, check_writable
from synther.envs.rendering import png, render_states
from synther.envs.simulator import Judge, describe, judge_of, supports
from synther.errors import DataError, SyntherError
from synther.folder import only_writer, write_object
from synther.origin import origin
from synther.progress import Progress, resolve
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

CALLS = (4, 8, 16, 32, 64)
"""Network calls per row of the samplers that are compared with the model's own."""

EFFORT = {"cpu": 2e11, "cuda": 1e14}
"""Multiplications that they may take together: ten seconds on two cores, one second on a GPU."""

FEWEST, MOST = 500, 50_000
"""Rows from each of them, for large networks and for small ones."""

JUDGED_ROWS = 2_000
"""Rows of each sampler that the simulator judges."""

KNOWN_ROWS = 100_000
"""Real rows that the rows of each sampler are compared with."""


@dataclass(frozen=True)
class Pair:
    """The rows that are compared, and their names."""

    real: Transitions
    synthetic: Transitions
    real_name: str
    synthetic_name: str
    held_out: Transitions | None = None
    model: Synthesizer | None = None
    """The model that made the synthetic rows, if it is known."""


@dataclass(frozen=True)
class Plan:
    """Where the report goes and what judges the rows. Invalid options are refused here, before any work."""

    folder: Path
    env_id: str | None = None
    """The environment, if the rows do not name it."""
    simulator: bool = True
    """Let the simulator judge, if there is one; otherwise networks do."""
    seed: int = 0
    device: str = "cpu"
    command: str = ""
    """The command line, for the footer of the report."""

    def __post_init__(self) -> None:
        there = check_folder(self.folder, "choose a folder for the report")
        check_writable(there)
        if self.env_id is not None and self.simulator:
            describe(self.env_id)  # says which are known


@dataclass(frozen=True)
class Assessed:
    """An assessment and its files."""

    assessment: Assessment
    report: Path
    figures: Path


def assess_to(plan: Plan, pair: Pair, *, progress: Progress | bool = True) -> Assessed:
    """Assess `pair` and write `report.html` and `assessment.json` into the folder of the plan."""
    page, figures = plan.folder / "report.html", plan.folder / "assessment.json"
    with only_writer(page):
        found = _assessed(plan, pair, resolve(progress))
        pages.write(found, page)
        write_object(figures, found.to_json())
    return Assessed(found, page, figures)


def _assessed(plan: Plan, pair: Pair, progress: Progress) -> Assessment:
    task = plan.env_id or pair.real.env_id
    simulator, notes = _simulator(plan, pair.real, task)
    model, about_model = _fitting(pair, plan.seed)
    sizes = f"{len(pair.synthetic):,}", f"{len(pair.real):,}", task or "an unknown environment"
    log.info(
        "assessing %s synthetic rows against %s real ones of %s: %s judges, on %s",
        *sizes,
        simulator or "networks",
        plan.device,
    )
    found = assess(
        pair.real,
        pair.synthetic,
        held_out=pair.held_out,
        simulator=simulator,
        simulator_name=None if simulator is None else str(simulator),
        parameters=None if model is None else _parameters(model),
        seed=plan.seed,
        device=plan.device,
        progress=progress,
        real_name=pair.real_name,
        synthetic_name=pair.synthetic_name,
    )
    found = replace(found, version=origin(torch.device("cpu"))["synther"], command=plan.command)
    found = replace(found, env_id=task, notes=(*notes, *about_model, *found.notes))
    if model is not None:
        process, about_frames = _process(model, pair.real, task, plan.seed)
        efforts, about_efforts = _efforts(model, pair.real, simulator, plan.seed, progress)
        found = replace(found, process=process, efforts=efforts, notes=(*found.notes, *about_frames, *about_efforts))
    return found


def _simulator(plan: Plan, real: Transitions, task: str | None) -> tuple[Judge | None, tuple[str, ...]]:
    """The simulator, if it can be asked about these rows, and why not. One that was asked for must be."""
    if not plan.simulator or task is None or not supports(task):
        return None, ()
    found = judge_of(real, task, named=plan.env_id is not None)
    if isinstance(found, Judge):
        return found, ()
    return None, (f"{describe(task)} cannot be asked: {found}",)


def _fitting(pair: Pair, seed: int) -> tuple[Synthesizer | None, tuple[str, ...]]:
    """The model, if it can have made such rows, and what is odd about it."""
    model = pair.model
    if model is None:
        return None, ()
    try:
        model.matrix(at_most(pair.real, KNOWN_ROWS, seed))
    except DataError as error:
        return None, (f"the model makes other rows than these, and is left aside: {error}",)
    if model.record.data == fingerprint(pair.real):
        return model, ()
    return model, (f"the model was fitted on {model.record.rows:,} other rows than the real ones here",)


def _parameters(model: Synthesizer) -> int:
    return sum(weights.numel() for weights in model.network.parameters())


def _process(model: Synthesizer, real: Transitions, task: str | None, seed: int) -> tuple[Process, tuple[str, ...]]:
    """The rows' way from noise to data, and what could not be drawn of it."""
    spread = model.settings.noise.sigma_data
    steps = list(model.trace(MAX_ROWS, seed=seed))
    levels = [steps[at] for at in _evenly_noisy([sigma for sigma, *_ in steps], spread)]
    frames, notes = _frames(task, real, [rows.observation[0] for _, _, rows in levels])
    paths = [matrix / (spread * edm.c_in(sigma, spread)) for sigma, matrix, _ in levels]
    known = model.matrix(at_most(real, KNOWN_ROWS, seed))
    return project(known, np.stack(paths), [sigma for sigma, *_ in levels], frames=frames), notes


def _evenly_noisy(sigmas: list[float], spread: float) -> list[int]:
    """The levels between which rows change alike. As the network sees it, a row is cos(a) data + sin(a) noise with
    tan(a) = sigma / sigma_data: samplers take most of their steps where a is nearly 90 or 0 degrees."""
    angles = np.arctan(np.array(sigmas) / spread)
    wanted = np.linspace(angles[0], angles[-1], MAX_LEVELS)
    nearest = np.abs(angles - wanted[:, None]).argmin(axis=1)
    return [int(at) for at in np.unique(nearest)]


def _frames(task: str | None, real: Transitions, states: list[Any]) -> tuple[list[bytes], tuple[str, ...]]:
    if task is None or not supports(task):
        return [], ()
    # Noise is no state of a body: what is drawn stays within what the real rows have reached.
    low, high = real.observation.min(axis=0), real.observation.max(axis=0)
    try:
        return [png(frame) for frame in render_states(task, np.clip(np.stack(states), low, high))], ()
    except SyntherError as error:
        return [], (f"states are not drawn: {error}",)


def _efforts(
    model: Synthesizer, real: Transitions, simulator: Simulator | None, seed: int, progress: Progress
) -> tuple[tuple[Effort, ...], tuple[str, ...]]:
    """What a few samplers reach for their network calls, and how to read it."""
    own = model.settings.sampler
    plain = own.kind == "unipc" and not own.matched and not own.restarts
    others = [SamplerConfig("unipc", calls) for calls in CALLS if not plain or calls != own.steps]
    samplers = [*others, own, *([] if model.student is None else [model.student.sampler])]
    calls = sum(sampler.network_calls for sampler in samplers)
    count = int(np.clip(EFFORT[model.device.type] / (calls * _parameters(model)), FEWEST, MOST))
    known = at_most(real, KNOWN_ROWS, seed)
    efforts = []
    with progress.phase("samplers", calls) as phase:
        for sampler in samplers:
            began = time.perf_counter()
            rows = _drawn(model, sampler, count, seed)
            seconds = time.perf_counter() - began
            name = _own_name(own) if sampler is own else sampler.kind
            alike, dynamics = compare(known, rows), _dynamics(rows, simulator, real)
            efforts.append(Effort(name, sampler.network_calls, alike.marginal, alike.correlation, dynamics, seconds))
            phase.advance(sampler.network_calls)
    return tuple(sorted(efforts, key=lambda effort: effort.calls)), (_ceiling(real, count, seed),)


def _own_name(own: SamplerConfig) -> str:
    calls = own.restarts * own.restart_steps
    restarted = f" and {calls} in {own.restarts} restarts" if own.restarts > 1 else f" and {calls} in a restart"
    return f"the model's own: {own.kind}, {own.steps} steps{restarted if own.restarts else ''}"


def _drawn(model: Synthesizer, sampler: SamplerConfig, count: int, seed: int) -> Transitions:
    """Rows of any sampler. Flags of others are cut, and terminals decided, as for the model's own: calibrating each
    would take longer than all the rest, and moves two-valued columns alone."""
    if sampler == model.settings.sampler or sampler.kind == DISTILLED:
        return model.sample(count, seed=seed, sampler=sampler, progress=False)
    asked = model.conditions.asking()
    blocks = BlockSampler(model.network, model.settings.noise, sampler, model.precision, asked=asked)
    drawn = [blocks.draw(seed, number).cpu() for number in range(-(-count // blocks.block_rows))]
    return model.rows_of(torch.cat(drawn)[:count].numpy())


def _dynamics(rows: Transitions, simulator: Simulator | None, real: Transitions) -> float | None:
    if simulator is None:
        return None
    judged = rows[:JUDGED_ROWS]
    return dynamics_error(judged, simulator(judged.observation, judged.action)[0], real)


def _ceiling(real: Transitions, count: int, seed: int) -> str:
    """What as many real rows reach: few rows look unlike any others, by chance."""
    order = np.random.default_rng(seed).permutation(len(real))
    few = min(count, len(real) // 2)
    text = f"{OF_SAMPLERS}each sampler made {count:,} rows"
    if not few:
        return text
    alike = compare(real[order[few:][:KNOWN_ROWS]], real[order[:few]])
    return f"{text}; {few:,} real ones reach marginal {alike.marginal:.4f} and correlation {alike.correlation:.4f}"
