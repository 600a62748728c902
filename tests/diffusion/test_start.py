"""Noise that makes up for a denoiser that shrinks: on Gaussian data, where everything is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.diffusion.config import NoiseConfig
from synther.diffusion.edm import karras_sigmas
from synther.diffusion.samplers import Denoise, dpm_solver_pp_2m
from synther.diffusion.start import Moments, Start, match

COLUMNS, ROWS = 4, 100_000
TURN = torch.linalg.qr(torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(0)).double())[0]
REAL = Moments(torch.tensor([0.05, -0.02, 0.0, 0.01]).double(), (TURN * torch.tensor([3.0, 1.0, 0.5, 0.2])) @ TURN.t())


def denoiser(moments: Moments) -> Denoise:
    """The exact one of a Gaussian."""

    def denoise(x: Tensor, sigma: float) -> Tensor:
        noise = sigma**2 * torch.eye(COLUMNS, dtype=torch.float64)
        gain = moments.covariance @ torch.linalg.inv(moments.covariance + noise)
        return moments.mean + (x - moments.mean) @ gain.t()

    return denoise


def generated(denoise: Denoise, start: Start, seed: int) -> Moments:
    sigmas = karras_sigmas(40, NoiseConfig())
    normal = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Moments.of(dpm_solver_pp_2m(denoise, start.draw(normal) * sigmas[0], sigmas))


def test_the_moments_of_rows():
    rows = torch.randn(100_000, COLUMNS, generator=torch.Generator().manual_seed(1)).double() @ TURN + 3
    moments = Moments.of(rows)
    assert torch.allclose(moments.mean, rows.mean(0), atol=1e-10)
    assert torch.allclose(moments.covariance, torch.cov(rows.t(), correction=0), atol=1e-9)


def test_plain_noise_is_the_noise_itself():
    normal = torch.randn(10, COLUMNS)
    assert torch.equal(Start.plain(COLUMNS).draw(normal), normal)


@pytest.mark.parametrize("factors", [(0.95, 0.97, 1.04, 0.96), (0.9, 0.9, 0.9, 0.9), (1.0, 1.0, 1.0, 1.0)])
def test_a_denoiser_of_the_wrong_covariance_is_made_up_for(factors: tuple[float, ...]):
    spectrum = torch.tensor([3.0, 1.0, 0.5, 0.2]) * torch.tensor(factors)
    wrong = denoiser(Moments(0.5 * REAL.mean, (TURN * spectrum) @ TURN.t()))
    before = generated(wrong, Start.plain(COLUMNS), seed=99)
    after = generated(wrong, match(REAL, lambda start, number: generated(wrong, start, number)), seed=99)
    noise = 3 * 3.0 * (2 / ROWS) ** 0.5  # three deviations of an estimated variance of 3
    assert (after.covariance - REAL.covariance).abs().max() < max(
        noise, 0.35 * (before.covariance - REAL.covariance).abs().max()
    )
    assert (after.mean - REAL.mean).abs().max() < 3 * (3.0 / ROWS) ** 0.5


def test_a_right_denoiser_is_left_alone():
    right = denoiser(REAL)
    start = match(REAL, lambda start, number: generated(right, start, number))
    assert (start.matrix - torch.eye(COLUMNS)).abs().max() < 0.01
    assert start.shift.abs().max() < 0.01


def test_directions_without_extent_are_left_alone():
    flat = torch.diag(torch.tensor([1.0, 1e-6]).double())
    start = Start.plain(2).corrected(
        Moments(torch.zeros(2).double(), flat), Moments(torch.tensor([0.0, 1e-3]).double(), 2 * flat)
    )
    assert start.matrix[1, 1] == pytest.approx(1, abs=1e-3)
    assert abs(start.shift[1]) < 1e-3


def test_no_stretch_beyond_a_tenth():
    zero = torch.zeros(2).double()
    start = Start.plain(2).corrected(
        Moments(zero, torch.eye(2).double()), Moments(zero + 5, 0.1 * torch.eye(2).double())
    )
    assert torch.allclose(start.matrix, 1.1 * torch.eye(2).double())
    assert start.shift.abs().max() <= 0.1 + 1e-12


def test_what_is_missing_is_put_on_top_of_what_was_put_in_before():
    """Rows that come out as they go in, from a start that turns them: the next one gives the real moments."""
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    start = Start(turn, torch.tensor([0.05, 0.0], dtype=torch.float64))
    real = Moments(
        torch.tensor([0.07, -0.04], dtype=torch.float64), torch.tensor([1.15, 0.9], dtype=torch.float64).diag()
    )
    better = start.corrected(real, Moments(start.shift, turn @ turn.t()))
    # The floor under the variances, 0.01, keeps a hundredth of what is missing back.
    torch.testing.assert_close(better.matrix @ better.matrix.t(), real.covariance, rtol=0, atol=0.002)
    torch.testing.assert_close(better.shift, real.mean, rtol=0, atol=0.01)
