"""Students: of normal rows it is known what they have to learn, and which rows one draws that has learned it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from synther.diffusion import edm
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.distill import distill, strides, student_sampler, written_down
from synther.diffusion.fit import fit
from synther.diffusion.networks import DenoisingNetwork
from synther.diffusion.samplers import angle_sigmas, euler, sample
from synther.errors import ConfigError
from synther.progress import Silent

NOISE = NoiseConfig(sigma_max=20)
MEAN, SPREAD = torch.tensor([0.3, -0.2]), torch.tensor([0.5, 1.2])


def flow(x: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """Where the flow of N(MEAN, SPREAD^2) takes rows from one noise level to another."""
    return MEAN + (x - MEAN) * ((SPREAD**2 + sigma_next**2) / (SPREAD**2 + sigma**2)).sqrt()


class Exact(DenoisingNetwork):
    """The network of the exact denoiser of normal rows."""

    def __init__(self) -> None:
        super().__init__()
        self.columns, self.idle = 2, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, c_noise: Tensor) -> Tensor:
        sigma = (4 * c_noise).exp()
        x = x / edm.c_in(sigma, 1.0)
        denoised = MEAN + SPREAD**2 / (SPREAD**2 + sigma**2) * (x - MEAN)
        return (denoised - edm.c_skip(sigma, 1.0) * x) / edm.c_out(sigma, 1.0)


def perfect(sigmas: list[float]):
    """The denoiser of a student that has learned to follow the flow through these levels."""
    following = dict(pairwise(sigmas))

    def denoise(x: Tensor, sigma: float) -> Tensor:
        sigma_next = following[sigma]
        return x + sigma / (sigma - sigma_next) * (flow(x, sigma, sigma_next) - x)

    return denoise


@pytest.mark.parametrize("calls", [1, 2, 3, 8])
def test_between_levels_rows_turn_by_the_same_angle(calls):
    sigmas = angle_sigmas(calls, NOISE)
    assert (len(sigmas), sigmas[0], sigmas[-1]) == (calls + 1, 20, 0)
    angles = torch.tensor(sigmas, dtype=torch.float64).atan()
    torch.testing.assert_close(angles.diff(), angles.new_full((calls,), -float(angles[0]) / calls))


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_perfect_student_follows_the_flow(calls, generator):
    config, sigmas = student_sampler(calls, SamplerConfig("unipc", 16)), angle_sigmas(calls, NOISE)
    x = 20 * torch.randn(1000, 2, generator=generator)
    drawn = sample(config, perfect(sigmas), x, sigmas, generator)
    torch.testing.assert_close(drawn, flow(x, 20, 0), rtol=1e-5, atol=1e-5)
    assert config.network_calls == calls


def learned(sampler: SamplerConfig, teacher_steps: int, rows: int = 700) -> list[tuple[float, Tensor, Tensor]]:
    """The noise level, rows and denoised rows of every stride that a student of the exact teacher is shown."""
    blocks = strides(Exact(), NOISE, sampler, rows, teacher_steps, None, 3, "float32")
    problem = written_down(torch.cat(list(blocks)), NOISE, torch.Generator(), ())
    sigma = (4 * problem.c_noise).exp()
    x = problem.inputs / edm.c_in(sigma, 1.0)
    denoised = edm.c_skip(sigma, 1.0) * x + edm.c_out(sigma, 1.0) * problem.target
    levels = sorted({round(level, 4) for level in sigma[:, 0].tolist()}, reverse=True)
    parts = [(sigma[:, 0] - level).abs() < 1e-3 * level for level in levels]
    return [(level, x[part], denoised[part]) for level, part in zip(levels, parts, strict=True)]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_student_is_shown_where_the_flow_leads(calls):
    sampler = student_sampler(calls, SamplerConfig("unipc", 16))
    shown = learned(sampler, 64)
    sigmas = angle_sigmas(calls, NOISE)
    assert [len(x) for _, x, _ in shown] == [700] * calls
    for (level, x, denoised), (sigma, sigma_next) in zip(shown, pairwise(sigmas), strict=True):
        assert level == pytest.approx(sigma, rel=1e-3)
        there = euler(lambda _, __, found=denoised: found, x, [sigma, sigma_next])
        torch.testing.assert_close(there, flow(x, sigma, sigma_next), rtol=5e-3, atol=5e-3)
        # The rows are those of the flow at this level, not of any other.
        assert float((x - MEAN).std(0)[0] / (SPREAD[0] ** 2 + sigma**2).sqrt()) == pytest.approx(1, abs=0.1)


def test_a_restart_takes_a_student_one_call(generator):
    teacher = SamplerConfig("unipc", 16, matched=True, restarts=4, restart_from=0.1)
    assert [student_sampler(calls, teacher).restarts for calls in (1, 2, 3, 4, 6)] == [0, 0, 1, 2, 2]
    sampler = student_sampler(4, teacher)
    assert (sampler.steps, sampler.restart_steps, sampler.matched, sampler.network_calls) == (2, 1, True, 4)
    *_, (level, x, denoised) = learned(sampler, 64)
    assert level == pytest.approx(0.1, rel=1e-3)
    torch.testing.assert_close(denoised, flow(x, 0.1, 0), rtol=5e-3, atol=5e-3)
    levels: list[float] = []

    def note(x: Tensor, sigma: float) -> Tensor:
        levels.append(sigma)
        return x

    sample(sampler, note, torch.zeros(2, 2), angle_sigmas(2, NOISE), generator)
    assert levels == [*angle_sigmas(2, NOISE)[:-1], 0.1, 0.1]


@pytest.mark.parametrize("calls", [-1, 0, 17])
def test_numbers_of_calls_that_make_no_student(calls):
    with pytest.raises(ConfigError, match=r"distill\.calls"):
        student_sampler(calls, SamplerConfig())


def test_a_student_learns_what_its_teacher_does(generator):
    """Two strides of the student end near the end of the teacher's flow, two of the teacher far from it."""
    rows = MEAN + SPREAD * torch.randn(2000, 2, generator=generator)
    short = FitConfig(steps=150, learning_rate=1e-2, evaluate_every=150)
    teacher = fit(rows, NetworkConfig(width=32, depth=1, embedding=16), short, NOISE, precision="float32").network
    sampler = student_sampler(2, SamplerConfig("unipc", 16))
    result = distill(teacher, NOISE, short, sampler, rows=2000, precision="float32", progress=Silent())
    sigmas, x = angle_sigmas(2, NOISE), 20 * torch.randn(500, 2, generator=generator)
    end = sample(SamplerConfig("unipc", 64), edm.Denoiser(teacher, NOISE), x, angle_sigmas(64, NOISE), generator)
    errors = [
        float((euler(edm.Denoiser(network, NOISE), x, sigmas) - end).square().mean().sqrt())
        for network in (result.network, teacher)
    ]
    assert errors[0] < 0.15
    assert errors[0] < 0.3 * errors[1]
