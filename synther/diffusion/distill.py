"""Distillation: fit a *student*, a network that takes a row from noise to data in a few network calls.

The fitted network is the *teacher*. It needs many calls, because its flow takes a row x from noise to data along a
curve, and the sampler follows this curve in many small steps. The way is divided into a few *strides*, and the student
learns to take each stride in one Euler step. An Euler step from sigma to sigma_next is
x + (sigma_next - sigma) / sigma (x - D). It ends at x_next, where the teacher's small steps end, if
D = x - sigma / (sigma - sigma_next) (x - x_next). This is an ordinary target for the denoiser. So the student is fitted
with the same trainer and the same squared error, begins with the teacher's weights, and is sampled with Euler's method.
Salimans and Ho (2022) halve the steps of a sampler again and again in this way. Here, each stride is learned directly
from the teacher's curve.

If the teacher's sampler does restarts, the student also learns the stride from the noise level of restarts to 0. Then
each restart takes it one call.

Consistency tuning (Geng et al. 2024) was also tried. In the same time it was far worse: docs/presets-and-speed.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from synther import compute
from synther.diffusion import edm, samplers
from synther.diffusion.blocks import ConditionSampler, draw_conditions
from synther.diffusion.config import DISTILLED, DistillConfig, FitConfig, NoiseConfig, SamplerConfig
from synther.diffusion.fit import STEP_CALLS, FitResult, fit
from synther.diffusion.networks import Network
from synther.errors import ConfigError
from synther.progress import Progress

_STREAM = 8  # number of the random stream; fit.py, blocks.py and synthesizer/ use other streams
_STRIDE_STEPS = 2  # minimum number of teacher steps in a stride of the student
_MOST_ROWS = 1_000_000  # maximum default of `distill.rows`
_MOST_RESTARTS = 2  # maximum number of restarts of a student
MOST_CALLS = 16
"""Maximum number of network calls of a student. With more calls, samplers without a student are good enough."""


def student_sampler(calls: int, teacher: SamplerConfig) -> SamplerConfig:
    """Return the sampler of a student with `calls` network calls per row, for a teacher with the sampler `teacher`.

    If the teacher does restarts, a student of 3 calls or more does them too. At least two calls go from noise to data.
    """
    if not 1 <= calls <= MOST_CALLS:
        raise ConfigError(f"distill.calls must be 1 to {MOST_CALLS} network calls per row, got {calls}")
    restarts = min(max(calls - 2, 0), teacher.restarts, _MOST_RESTARTS)
    student = SamplerConfig(DISTILLED, calls - restarts, matched=teacher.matched, restarts=restarts, restart_steps=1)
    level = teacher.restart_from
    return replace(student, restart_from=level, restart_to=min(level, teacher.restart_to))


def student_fit(config: DistillConfig, fit: FitConfig, steps: int) -> FitConfig:
    """Return the options for fitting a student, for a teacher that was fitted with `fit` and took `steps` steps.

    There is no early stopping, because the student's targets contain no random noise that it could memorise.
    """
    student_steps = max(steps // 2, 1) if config.steps is None else config.steps
    minutes = None if fit.minutes is None else fit.minutes / 2
    return replace(fit, steps=student_steps, minutes=minutes, patience=None, overfit=None)


def teacher_rows(config: DistillConfig, batches: int) -> int:
    """Return how many rows the teacher samples. `batches` is the number of rows in all batches of its own fit."""
    if config.rows is not None:
        return config.rows
    return min(max(STEP_CALLS * batches // (6 * config.teacher_steps), 1), _MOST_ROWS)


def distill(
    teacher: Network,
    noise: NoiseConfig,
    config: FitConfig,
    sampler: SamplerConfig,
    *,
    rows: int,
    teacher_steps: int = 16,
    asked: ConditionSampler | None = None,
    seed: int = 0,
    precision: compute.Precision = "auto",
    checkpoint: Path | None = None,
    progress: Progress,
) -> FitResult[Network]:
    """Fit a student on `rows` rows that the teacher samples. `sampler` is the result of `student_sampler`."""
    drawn = []
    with progress.phase("teach", rows) as phase:
        for some in strides(teacher, noise, sampler, rows, teacher_steps, asked, seed, precision):
            drawn.append(some)
            phase.advance(len(some) // sampler_strides(sampler))
    hidden = (0.0,) * teacher.conditions
    return fit(
        torch.cat(drawn), teacher.config, config, noise, seed=seed, precision=precision, start=teacher, hidden=hidden,
        problems=written_down, checkpoint=checkpoint, progress=progress, phase="distill",
    )  # fmt: skip


def written_down(rows: Tensor, noise: NoiseConfig, generator: torch.Generator, hidden: Sequence[float]) -> edm.Problem:
    """Return the regression problem of `rows` (N, 2 D + 1 + K), which already contain inputs, target, c_noise and
    conditions (see `strides`)."""
    columns = (rows.shape[1] - 1 - len(hidden)) // 2
    parts = rows[:, :columns], rows[:, 2 * columns : 2 * columns + 1], rows[:, columns : 2 * columns]
    return edm.Problem(*parts, rows[:, 2 * columns + 1 :] if hidden else None)


def sampler_strides(sampler: SamplerConfig) -> int:
    """Return the number of different strides of a student. All restarts are the same stride."""
    return sampler.steps + min(sampler.restarts, 1)


def strides(
    teacher: Network,
    noise: NoiseConfig,
    sampler: SamplerConfig,
    rows: int,
    teacher_steps: int,
    asked: ConditionSampler | None,
    seed: int,
    precision: compute.Precision,
) -> Iterator[Tensor]:
    """Yield the regression problems of a student as rows (N, 2 D + 1 + K): c_in x, target of F, c_noise, K conditions.

    They come in blocks. Each block is a function of (seed, block number) and holds all strides of some sampled rows:
    first the first stride of every row, then the second, and so on.
    """
    device = next(teacher.parameters()).device
    precision = compute.pick_precision(precision, device)
    denoiser = edm.Denoiser(teacher, noise, compute.working_dtype(precision))
    size, sigmas = compute.block_rows(device), samplers.sigmas_of(sampler, noise)
    steps = _divided(sigmas, noise, teacher_steps)

    @torch.no_grad()
    def block_problems(block: int) -> Tensor:
        with compute.working_on(device, "lower distill.rows"), compute.matmul_precision(precision):
            count = min(size, rows - block * size)
            source = compute.generator(device, seed, _STREAM, block)
            given = draw_conditions(asked, count, seed, block, device)

            def denoise(x: Tensor, sigma: float) -> Tensor:
                return denoiser(x, sigma, given)

            def normal() -> Tensor:
                return torch.randn(count, teacher.columns, generator=source, device=device, dtype=torch.float32)

            problems, x = [], normal() * sigmas[0]
            for (sigma, sigma_next), levels in zip(pairwise(sigmas), steps, strict=True):
                x_next = samplers.unipc(denoise, x, levels)
                problems.append(_problem(x, sigma, x_next, sigma_next, noise))
                x = x_next
            if sampler.restarts:
                raised = torch.add(x, normal(), alpha=sampler.restart_from)
                low = edm.geometric_sigmas(4 * _STRIDE_STEPS, sampler.restart_from, noise.sigma_min)
                back = samplers.unipc(denoise, raised, low)
                problems.append(_problem(raised, sampler.restart_from, back, 0.0, noise))
            joined = torch.cat(problems)
            return joined if given is None else torch.cat([joined, given.repeat(len(problems), 1)], dim=1)

    return compute.spread(block_problems, range(-(-rows // size)), device)


def _problem(x: Tensor, sigma: float, x_next: Tensor, sigma_next: float, noise: NoiseConfig) -> Tensor:
    """Return c_in x, the target of F and c_noise (N, 2 D + 1). With this target, an Euler step ends at `x_next`."""
    sigma_data = noise.sigma_data
    denoised = torch.lerp(x, x_next, sigma / (sigma - sigma_next))
    target = (denoised - edm.c_skip(sigma, sigma_data) * x) / edm.c_out(sigma, sigma_data)
    level = x.new_full((len(x), 1), edm.c_noise(sigma))
    return torch.cat([edm.c_in(sigma, sigma_data) * x, target, level], dim=1)


def _divided(sigmas: Sequence[float], noise: NoiseConfig, steps: int) -> list[list[float]]:
    """Return the teacher's noise levels in each stride: about `steps` steps in all, at equal distances in ln sigma."""
    ends = [*sigmas[:-1], min(noise.sigma_min, sigmas[-2] / 2)]
    whole, divided = math.log(ends[0] / ends[-1]), []
    for place, (sigma, sigma_next) in enumerate(pairwise(ends)):
        count = max(round(steps * math.log(sigma / sigma_next) / whole), _STRIDE_STEPS)
        is_last = place == len(ends) - 2
        levels = edm.geometric_sigmas(count + (not is_last), sigma, sigma_next)
        divided.append(levels if is_last else levels[:-1])
    return divided
