"""Classifier-free guidance with exact denoisers, whose conditional distributions are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther.diffusion import samplers
from synther.diffusion.config import NoiseConfig, SamplerConfig
from synther.diffusion.edm import draw_problem, guided

MEANS, STD = (-2.0, 1.0), 0.3
SHARES = (0.7, 0.3)


class Mixture:
    """The exact denoiser of a mixture of two Gaussians. Condition 0 says which (0 or 1), if it is known; condition 1
    moves both by as much as it says."""

    calls = 0

    def __call__(self, x: torch.Tensor, sigma: float, given: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        which, moved = given[:, :1], given[:, 1:].nan_to_num(0.0)
        means = torch.tensor(MEANS, dtype=x.dtype) + moved
        variance = STD**2 + sigma**2
        weight = torch.log(torch.tensor(SHARES, dtype=x.dtype)) - (x - means) ** 2 / (2 * variance)
        responsible = torch.softmax(weight, dim=1)
        known = torch.cat([1 - which, which], dim=1)
        responsible = torch.where(which.isnan(), responsible, known)
        expected = means + STD**2 / variance * (x - means)
        return (responsible * expected).sum(1, keepdim=True)


def drawn(config: SamplerConfig, told: list[float], guidance: tuple, count: int = 6_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = NoiseConfig()  # from 80, where a mean of 2 is lost in the noise
    sigmas = samplers.sigmas_of(config, noise)
    given = torch.tensor([told], dtype=torch.float64).repeat(count, 1)
    x = sigmas[0] * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    exact = Mixture()
    return samplers.sample(config, lambda x, s: guided(exact, x, s, given, guidance), x, sigmas, generator)[:, 0]


SAMPLERS = {
    "sde": SamplerConfig("sde", 64),
    "heun": SamplerConfig("heun", 64),
    "euler": SamplerConfig("euler", 200),
    "unipc": SamplerConfig("unipc", 20, restarts=4),
}


@pytest.mark.parametrize("config", SAMPLERS.values(), ids=SAMPLERS)
def test_weight_1_gives_the_conditional_distribution(config):
    for which, mean in enumerate(MEANS):
        rows = drawn(config, [float(which), math.nan], (((0,), 1.0),))
        # Four standard errors of a mean of 6,000, and what so many steps leave.
        assert float(rows.mean()) == pytest.approx(mean, abs=0.02)
        assert float(rows.std()) == pytest.approx(STD, rel=0.04)


@pytest.mark.parametrize("config", SAMPLERS.values(), ids=SAMPLERS)
def test_weight_0_gives_the_distribution_of_all_rows(config):
    rows = drawn(config, [1.0, math.nan], (((0,), 0.0),))
    assert float((rows > -0.5).double().mean()) == pytest.approx(SHARES[1], abs=0.02)


def test_conditions_in_no_part_are_always_told():
    moved = drawn(SAMPLERS["unipc"], [1.0, 1.5], (((0,), 0.0),))
    assert float((moved > 1).double().mean()) == pytest.approx(SHARES[1], abs=0.02)
    assert float(drawn(SAMPLERS["unipc"], [1.0, 1.5], ()).mean()) == pytest.approx(MEANS[1] + 1.5, abs=0.02)


def test_parts_have_weights_of_their_own():
    """Of a Gaussian that condition 1 moves by m, D_1 - D_0 is (1 - s^2 / (s^2 + sigma^2)) m: twice that moves by 2m."""
    x = torch.randn(50, 1, dtype=torch.float64)
    given = torch.tensor([[0.0, 0.7]], dtype=torch.float64).repeat(50, 1)
    exact, unknown = Mixture(), torch.full_like(given, math.nan)
    only = [given.clone(), given.clone()]
    only[0][:, 1], only[1][:, 0] = math.nan, math.nan
    base, first, second = (exact(x, 0.5, told) for told in (unknown, *only))
    exact.calls = 0
    found = guided(exact, x, 0.5, given, (((0,), 2.0), ((1,), 3.0)))
    assert exact.calls == 1
    torch.testing.assert_close(found, base + 2 * (first - base) + 3 * (second - base))
    together = guided(exact, x, 0.5, given, (((0, 1), 2.0),))
    torch.testing.assert_close(together, base + 2 * (exact(x, 0.5, given) - base))


def test_more_than_1_leaves_less_between_the_modes():
    near = [drawn(SAMPLERS["heun"], [1.0, math.nan], (((0,), weight),)) for weight in (0.5, 1.0, 3.0)]
    low = [float((rows < -0.5).double().mean()) for rows in near]
    assert low[0] > 0.02 > low[1] >= low[2]


def test_conditions_are_hidden_as_often_as_asked():
    rows = torch.cat([torch.randn(40_000, 2), torch.rand(40_000, 2)], dim=1)
    problem = draw_problem(rows, NoiseConfig(), torch.Generator().manual_seed(0), (0.0, 0.25))
    plain = draw_problem(rows[:, :2], NoiseConfig(), torch.Generator().manual_seed(0))
    assert torch.equal(problem.inputs, plain.inputs)
    assert torch.equal(problem.target, plain.target)
    hidden = problem.given.isnan()
    assert not hidden[:, 0].any()
    assert float(hidden[:, 1].float().mean()) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 40_000))
    assert np.array_equal(problem.given[~hidden], rows[:, 2:][~hidden])
