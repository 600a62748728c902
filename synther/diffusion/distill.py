"""A student: a network that takes a row from noise to data in a few calls, as a fitted network does in many.

The flow of a fitted network, the teacher, takes a row x from each noise level to the next along a curve, which its
sampler follows in many small steps. The student learns to take each of these few strides at once. The step of Euler's
method from sigma to sigma_next is x + (sigma_next - sigma) / sigma (x - D), so it ends where the teacher's does, at
x_next, if D = x - sigma / (sigma - sigma_next) (x - x_next). That is an ordinary target of the denoiser. The student is
fitted by the same trainer and the same squared error, begins with the teacher's weights, and is sampled by Euler's
method. Salimans and Ho (2022) halve the steps of a sampler again and again in this way; the strides here are learned
from the whole curve at once.

Where the teacher's sampler restarts, the student also learns the way from the level of restarts to 0, so that each
restart takes it one call.

Consistency tuning (Geng et al. 2024) was tried as well. In the same time it was far worse: docs/presets-and-speed.md.
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
from synther.diffusion.blocks import Asked, given_of
from synther.diffusion.config import DISTILLED, DistillConfig, FitConfig, NoiseConfig, SamplerConfig
from synther.diffusion.fit import STEP_CALLS, FitResult, fit
from synther.diffusion.networks import Network
from synther.errors import ConfigError
from synther.progress import Progress

_STREAM = 8  # of random numbers, beside those of fit.py, blocks.py and synthesizer/
_STRIDE_STEPS = 2  # at least, of the teacher for each stride of the student
_MOST_ROWS = 1_000_000
_MOST_RESTARTS = 2
MOST_CALLS = 16
"""More calls are for samplers that need no student."""


def student_sampler(calls: int, teacher: SamplerConfig) -> SamplerConfig:
    """The sampler of a student of so many network calls, whose teacher has this sampler.

    Where the teacher restarts, so does the student, from 3 calls on: the first two take rows from noise to data.
    """
    if not 1 <= calls <= MOST_CALLS:
        raise ConfigError(f"distill.calls: expected 1 to {MOST_CALLS} network calls a row, got {calls}")
    restarts = min(max(calls - 2, 0), teacher.restarts, _MOST_RESTARTS)
    own = SamplerConfig(DISTILLED, calls - restarts, matched=teacher.matched, restarts=restarts, restart_steps=1)
    level = teacher.restart_from
    return replace(own, restart_from=level, restart_to=min(level, teacher.restart_to))


def student_fit(config: DistillConfig, fit: FitConfig, steps: int) -> FitConfig:
    """How the student of a model is fitted, whose own fit was `fit` and took so many `steps`. What it learns is no
    sample with noise in it, so there is nothing to stop early for."""
    wanted = max(steps // 2, 1) if config.steps is None else config.steps
    minutes = None if fit.minutes is None else fit.minutes / 2
    return replace(fit, steps=wanted, minutes=minutes, patience=None, overfit=None)


def teacher_rows(config: DistillConfig, batches: int) -> int:
    """How many rows the teacher draws, after a fit on `batches` rows in all."""
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
    asked: Asked | None = None,
    seed: int = 0,
    precision: compute.Precision = "auto",
    checkpoint: Path | None = None,
    progress: Progress,
) -> FitResult[Network]:
    """Fit a student for `sampler`, that of `student_sampler`, on `rows` which the teacher draws."""
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
    """The problems that `rows` (N, 2 D + 1 + K) hold already: see `strides`."""
    columns = (rows.shape[1] - 1 - len(hidden)) // 2
    parts = rows[:, :columns], rows[:, 2 * columns : 2 * columns + 1], rows[:, columns : 2 * columns]
    return edm.Problem(*parts, rows[:, 2 * columns + 1 :] if hidden else None)


def sampler_strides(sampler: SamplerConfig) -> int:
    """How many different strides a sampler of students has: all restarts have the same one."""
    return sampler.steps + min(sampler.restarts, 1)


def strides(
    teacher: Network,
    noise: NoiseConfig,
    sampler: SamplerConfig,
    rows: int,
    teacher_steps: int,
    asked: Asked | None,
    seed: int,
    precision: compute.Precision,
) -> Iterator[Tensor]:
    """What a student has to learn, as rows (N, 2 D + 1 + K): c_in x, the target of F, c_noise and K conditions.

    They come in blocks, each a function of (seed, its number): the strides of some rows, one stride after the other.
    """
    device = next(teacher.parameters()).device
    precision = compute.pick_precision(precision, device)
    denoiser = edm.Denoiser(teacher, noise, compute.working_dtype(precision))
    size, sigmas = compute.block_rows(device), samplers.sigmas_of(sampler, noise)
    steps = _divided(sigmas, noise, teacher_steps)

    @torch.no_grad()
    def learned_from(block: int) -> Tensor:
        with compute.working_on(device, "lower distill.rows"), compute.matmul_precision(precision):
            count = min(size, rows - block * size)
            source = compute.generator(device, seed, _STREAM, block)
            given = given_of(asked, count, seed, block, device)

            def denoise(x: Tensor, sigma: float) -> Tensor:
                return denoiser(x, sigma, given)

            def normal() -> Tensor:
                return torch.randn(count, teacher.columns, generator=source, device=device, dtype=torch.float32)

            learned, x = [], normal() * sigmas[0]
            for (sigma, sigma_next), some in zip(pairwise(sigmas), steps, strict=True):
                x_next = samplers.unipc(denoise, x, some)
                learned.append(_problem(x, sigma, x_next, sigma_next, noise))
                x = x_next
            if sampler.restarts:
                raised = torch.add(x, normal(), alpha=sampler.restart_from)
                low = edm.geometric_sigmas(4 * _STRIDE_STEPS, sampler.restart_from, noise.sigma_min)
                back = samplers.unipc(denoise, raised, low)
                learned.append(_problem(raised, sampler.restart_from, back, 0.0, noise))
            found = torch.cat(learned)
            return found if given is None else torch.cat([found, given.repeat(len(learned), 1)], dim=1)

    return compute.spread(learned_from, range(-(-rows // size)), device)


def _problem(x: Tensor, sigma: float, x_next: Tensor, sigma_next: float, noise: NoiseConfig) -> Tensor:
    """c_in x, the target of F and c_noise (N, 2 D + 1) of a stride of Euler's method that is to end at `x_next`."""
    sigma_data = noise.sigma_data
    denoised = torch.lerp(x, x_next, sigma / (sigma - sigma_next))
    target = (denoised - edm.c_skip(sigma, sigma_data) * x) / edm.c_out(sigma, sigma_data)
    level = x.new_full((len(x), 1), edm.c_noise(sigma))
    return torch.cat([edm.c_in(sigma, sigma_data) * x, target, level], dim=1)


def _divided(sigmas: Sequence[float], noise: NoiseConfig, steps: int) -> list[list[float]]:
    """The noise levels through which the teacher goes on each stride, about `steps` in all, even in log sigma."""
    ends = [*sigmas[:-1], min(noise.sigma_min, sigmas[-2] / 2)]
    whole, found = math.log(ends[0] / ends[-1]), []
    for place, (sigma, sigma_next) in enumerate(pairwise(ends)):
        some = max(round(steps * math.log(sigma / sigma_next) / whole), _STRIDE_STEPS)
        is_last = place == len(ends) - 2
        levels = edm.geometric_sigmas(some + (not is_last), sigma, sigma_next)
        found.append(levels if is_last else levels[:-1])
    return found
