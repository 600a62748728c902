"""The job behind `synther assess`: compare synthetic with real rows, and write the report and its figures.

`judge.assess` computes measures and verdict. If the model of the synthetic rows is known, this module adds two parts
to the report: rows on their way from noise to data, and the quality of samplers with fewer or more network calls.
"""

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
"""Network calls per row of the UniPC samplers that are compared with the sampler of the model."""

EFFORT = {"cpu": 2e11, "cuda": 1e14}
"""Approximate number of multiplications for all these samplers together: ten seconds on two cores, one on a GPU."""

FEWEST, MOST = 500, 50_000
"""Smallest and largest number of rows that each of these samplers draws. Large networks draw fewer rows."""

JUDGED_ROWS = 2_000
"""Largest number of rows of each sampler that the simulator judges."""

KNOWN_ROWS = 100_000
"""Largest number of real rows that the rows of each sampler are compared with."""


@dataclass(frozen=True)
class Pair:
    """The real and the synthetic rows to compare, and their names in the report."""

    real: Transitions
    synthetic: Transitions
    real_name: str
    synthetic_name: str
    held_out: Transitions | None = None
    """Real rows that the generator has not seen. Default: a part of the real rows."""
    model: Synthesizer | None = None
    """The model that made the synthetic rows, if it is known."""


@dataclass(frozen=True)
class Plan:
    """The folder of the report, and options of the assessment. Invalid options raise an error here, before any work."""

    folder: Path
    env_id: str | None = None
    """Id of the environment, if the rows do not name it."""
    simulator: bool = True
    """Use the simulator as judge if there is one. Otherwise networks judge."""
    seed: int = 0
    device: str = "cpu"
    command: str = ""
    """The command line, for the footer of the report."""

    def __post_init__(self) -> None:
        existing = check_folder(self.folder, "choose a folder for the report")
        check_writable(existing)
        if self.env_id is not None and self.simulator:
            describe(self.env_id)  # raises an error that lists the known environments


@dataclass(frozen=True)
class Assessed:
    """An assessment and its files."""

    assessment: Assessment
    report: Path
    figures: Path


def assess_to(plan: Plan, pair: Pair, *, progress: Progress | bool = True) -> Assessed:
    """Assess `pair`, write `report.html` and `assessment.json` into the folder of the plan, and return their paths."""
    page, figures = plan.folder / "report.html", plan.folder / "assessment.json"
    with only_writer(page):
        found = _assessed(plan, pair, resolve(progress))
        pages.write(found, page)
        write_object(figures, found.to_json())
    return Assessed(found, page, figures)


def _assessed(plan: Plan, pair: Pair, progress: Progress) -> Assessment:
    task = plan.env_id or pair.real.env_id
    simulator, notes = _simulator(plan, pair.real, task)
    model, about_model = _checked_model(pair, plan.seed)
    sizes = f"{len(pair.synthetic):,}", f"{len(pair.real):,}", task or "an unknown environment"
    log.info(
        "assessing %s synthetic rows against %s real rows of %s, judged by %s, on %s",
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
    """Return the simulator if it can judge these rows, and a note if it cannot.

    If the user named the environment, a simulator that cannot judge the rows is an error.
    """
    if not plan.simulator or task is None or not supports(task):
        return None, ()
    found = judge_of(real, task, named=plan.env_id is not None)
    if isinstance(found, Judge):
        return found, ()
    return None, (f"{describe(task)} cannot judge these rows: {found}",)


def _checked_model(pair: Pair, seed: int) -> tuple[Synthesizer | None, tuple[str, ...]]:
    """Return the model if it can generate such rows, and a note if it cannot or was fitted on other data."""
    model = pair.model
    if model is None:
        return None, ()
    try:
        model.matrix(at_most(pair.real, KNOWN_ROWS, seed))
    except DataError as error:
        return None, (f"the model cannot generate such rows and is ignored: {error}",)
    if model.record.data == fingerprint(pair.real):
        return model, ()
    return model, (f"the model was fitted on other data than these real rows ({model.record.rows:,} rows)",)


def _parameters(model: Synthesizer) -> int:
    return sum(weights.numel() for weights in model.network.parameters())


def _process(model: Synthesizer, real: Transitions, task: str | None, seed: int) -> tuple[Process, tuple[str, ...]]:
    """Return rows at several noise levels, from noise to data, and a note if their states cannot be rendered."""
    spread = model.settings.noise.sigma_data
    steps = list(model.trace(MAX_ROWS, seed=seed))
    levels = [steps[at] for at in _evenly_noisy([sigma for sigma, *_ in steps], spread)]
    frames, notes = _frames(task, real, [rows.observation[0] for _, _, rows in levels])
    paths = [matrix / (spread * edm.c_in(sigma, spread)) for sigma, matrix, _ in levels]
    known = model.matrix(at_most(real, KNOWN_ROWS, seed))
    return project(known, np.stack(paths), [sigma for sigma, *_ in levels], frames=frames), notes


def _evenly_noisy(sigmas: list[float], spread: float) -> list[int]:
    """Return the indices of noise levels between which rows change by equal amounts.

    The network sees a row as cos(a) data + sin(a) noise, with tan(a) = sigma / sigma_data. The levels are chosen at
    equal distances of a, because samplers take most of their steps where a is nearly 90 or 0 degrees.
    """
    angles = np.arctan(np.array(sigmas) / spread)
    wanted = np.linspace(angles[0], angles[-1], MAX_LEVELS)
    nearest = np.abs(angles - wanted[:, None]).argmin(axis=1)
    return [int(at) for at in np.unique(nearest)]


def _frames(task: str | None, real: Transitions, states: list[Any]) -> tuple[list[bytes], tuple[str, ...]]:
    """Return a rendered PNG of each state, and a note if the environment cannot be rendered."""
    if task is None or not supports(task):
        return [], ()
    # Noise is not a valid state, so states are clipped to the range of the real rows.
    low, high = real.observation.min(axis=0), real.observation.max(axis=0)
    try:
        return [png(frame) for frame in render_states(task, np.clip(np.stack(states), low, high))], ()
    except SyntherError as error:
        return [], (f"states are not rendered: {error}",)


def _efforts(
    model: Synthesizer, real: Transitions, simulator: Simulator | None, seed: int, progress: Progress
) -> tuple[tuple[Effort, ...], tuple[str, ...]]:
    """Return the quality of the model's sampler and of UniPC with several numbers of network calls, and a note that
    says what real rows reach."""
    own = model.settings.sampler
    is_plain = own.kind == "unipc" and not own.matched and not own.restarts
    others = [SamplerConfig("unipc", calls) for calls in CALLS if not is_plain or calls != own.steps]
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
            compared, dynamics = compare(known, rows), _dynamics(rows, simulator, real)
            efforts.append(
                Effort(name, sampler.network_calls, compared.marginal, compared.correlation, dynamics, seconds)
            )
            phase.advance(sampler.network_calls)
    return tuple(sorted(efforts, key=lambda effort: effort.calls)), (_ceiling(real, count, seed),)


def _own_name(own: SamplerConfig) -> str:
    calls = own.restarts * own.restart_steps
    restarted = f" and {calls} in {own.restarts} restarts" if own.restarts > 1 else f" and {calls} in a restart"
    return f"the model's sampler: {own.kind}, {own.steps} steps{restarted if own.restarts else ''}"


def _drawn(model: Synthesizer, sampler: SamplerConfig, count: int, seed: int) -> Transitions:
    """Draw rows with any sampler.

    Samplers other than the model's own use its thresholds of flags and its rule for terminals. A calibration of each
    sampler would take longer than everything else, and only changes columns with two values.
    """
    if sampler == model.settings.sampler or sampler.kind == DISTILLED:
        return model.sample(count, seed=seed, sampler=sampler, progress=False)
    asked = model.conditions.asking()
    blocks = BlockSampler(model.network, model.settings.noise, sampler, model.precision, asked=asked)
    drawn = [blocks.draw(seed, number).cpu() for number in range(-(-count // blocks.block_rows))]
    return model.rows_of(torch.cat(drawn)[:count].numpy())


def _dynamics(rows: Transitions, simulator: Simulator | None, real: Transitions) -> float | None:
    """Return the dynamics error by the simulator; None without a simulator."""
    if simulator is None:
        return None
    judged = rows[:JUDGED_ROWS]
    return dynamics_error(judged, simulator(judged.observation, judged.action)[0], real)


def _ceiling(real: Transitions, count: int, seed: int) -> str:
    """Return a note that says which figures the same number of real rows reaches.

    Few rows always differ from other rows by chance, so the figures of the samplers must be compared with these.
    """
    order = np.random.default_rng(seed).permutation(len(real))
    few = min(count, len(real) // 2)
    text = f"{OF_SAMPLERS}each sampler generated {count:,} rows"
    if not few:
        return text
    reached = compare(real[order[few:][:KNOWN_ROWS]], real[order[:few]])
    return f"{text}; {few:,} real rows reach marginal {reached.marginal:.4f} and correlation {reached.correlation:.4f}"
