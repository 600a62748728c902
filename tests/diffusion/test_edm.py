from __future__ import annotations

import itertools
import math

import pytest
import torch

from synther.diffusion import edm
from synther.diffusion.config import NoiseConfig

SIGMAS = torch.logspace(-3, 3, 25, dtype=torch.float64)
SPREADS = [0.5, 1.0, 3.0]


@pytest.mark.parametrize("sigma_data", SPREADS)
def test_inputs_and_targets_have_unit_variance_and_every_level_counts_the_same(sigma_data):
    inputs = edm.c_in(SIGMAS, sigma_data) ** 2 * (SIGMAS**2 + sigma_data**2)
    torch.testing.assert_close(inputs, torch.ones_like(inputs))
    effective = loss_weight(SIGMAS, sigma_data) * edm.c_out(SIGMAS, sigma_data) ** 2
    torch.testing.assert_close(effective, torch.ones_like(effective))
    # Eq. 7's derivation: Var(clean - c_skip x) = c_out^2 where Var(clean) = sigma_data^2.
    skip = edm.c_skip(SIGMAS, sigma_data)
    variance = (1 - skip) ** 2 * sigma_data**2 + skip**2 * SIGMAS**2
    torch.testing.assert_close(variance, edm.c_out(SIGMAS, sigma_data) ** 2)


def loss_weight(sigma, sigma_data):
    """Karras et al. 2022, Table 1."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


def test_a_clean_row_passes_and_pure_noise_does_not():
    # Both differ from their limits by (sigma / sigma_data)^2 or its inverse: 1e-12 here.
    assert edm.c_skip(1e-6, 1.0) == pytest.approx(1, abs=2e-12)
    assert edm.c_skip(1e6, 1.0) == pytest.approx(0, abs=2e-12)
    assert edm.c_out(1e-6, 1.0) == pytest.approx(1e-6, rel=2e-12)
    assert edm.c_out(1e6, 2.0) == pytest.approx(2, rel=1e-11)


@pytest.mark.parametrize("steps", [2, 3, 18, 128])
def test_schedule_runs_from_largest_to_smallest_to_zero(steps):
    noise = NoiseConfig()
    sigmas = edm.karras_sigmas(steps, noise)
    assert len(sigmas) == steps + 1
    assert sigmas[0] == pytest.approx(noise.sigma_max)
    assert sigmas[-2] == pytest.approx(noise.sigma_min)
    assert sigmas[-1] == 0
    assert all(a > b for a, b in itertools.pairwise(sigmas))


def test_schedule_is_even_in_the_rho_th_root():
    noise = NoiseConfig(sigma_min=0.01, sigma_max=10, rho=3)
    roots = [sigma ** (1 / 3) for sigma in edm.karras_sigmas(10, noise)[:-1]]
    gaps = [a - b for a, b in itertools.pairwise(roots)]
    assert edm.karras_sigmas(1, NoiseConfig(sigma_max=7)) == [7, 0]
    assert gaps == pytest.approx([(10 ** (1 / 3) - 0.01 ** (1 / 3)) / 9] * 9)


@pytest.mark.parametrize("sigma_data", SPREADS)
def test_problem_is_the_weighted_denoising_loss(sigma_data, generator):
    noise = NoiseConfig(sigma_data=sigma_data)
    clean = torch.randn(500, 4, generator=generator, dtype=torch.float64) * sigma_data
    inputs, level, target, _ = edm.draw_problem(clean, noise, generator)
    sigma = (4 * level).exp()
    assert level.shape == (500, 1)
    noisy = inputs / edm.c_in(sigma, sigma_data)
    expected = (clean - edm.c_skip(sigma, sigma_data) * noisy) / edm.c_out(sigma, sigma_data)
    # `expected` cancels where sigma is small (down to 1e-3): a thousand times the rounding of float64.
    torch.testing.assert_close(target, expected, rtol=0, atol=1e-12)

    # So the squared error of F is lambda |D - clean|^2, whatever F says.
    said = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    denoised = edm.c_skip(sigma, sigma_data) * noisy + edm.c_out(sigma, sigma_data) * said
    weighted = loss_weight(sigma, sigma_data) * (denoised - clean) ** 2
    torch.testing.assert_close((said - target) ** 2, weighted, rtol=1e-9, atol=1e-12)


def test_noise_is_normal_and_its_level_log_normal(generator):
    noise, count = NoiseConfig(), 40_000
    clean = torch.full((count, 2), 3.0, dtype=torch.float64)
    inputs, level, *_ = edm.draw_problem(clean, noise, generator)
    sigma = (4 * level).exp()
    added = (inputs / edm.c_in(sigma, noise.sigma_data) - clean) / sigma
    # Five standard errors: of a mean 1 / sqrt(n), of a variance sqrt(2 / n), of a correlation 1 / sqrt(n).
    five = 5 / math.sqrt(count)
    log_sigma = (sigma.log() - noise.p_mean) / noise.p_std
    for column in torch.cat([log_sigma, added], dim=1).t():
        assert abs(column.mean()) < five
        assert abs(column.var() - 1) < math.sqrt(2) * five
        assert abs((column**4).mean() - 3) < math.sqrt(96) * five  # Var(z^4) = 105 - 9
    correlations = torch.corrcoef(torch.cat([log_sigma, added], dim=1).t()) - torch.eye(3)
    assert correlations.abs().max() < five
