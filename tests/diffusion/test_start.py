"""Noise that makes up for a denoiser that shrinks: on Gaussian data, where everything is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.diffusion import start as start_module
from synther.diffusion.config import NoiseConfig
from synther.diffusion.edm import karras_sigmas
from synther.diffusion.samplers import Denoise, unipc
from synther.diffusion.start import Moments, Start, match

COLUMNS, ROWS = 4, 100_000
ALL = range(COLUMNS)
TURN = torch.linalg.qr(torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(0)).double())[0]
SPECTRUM = torch.tensor([1.6, 0.8, 0.5, 0.2])
REAL = Moments(torch.tensor([0.05, -0.02, 0.0, 0.01]).double(), (TURN * SPECTRUM) @ TURN.t())


def denoiser(moments: Moments) -> Denoise:
    """The exact one of a Gaussian."""

    def denoise(x: Tensor, sigma: float) -> Tensor:
        noise = sigma**2 * torch.eye(COLUMNS, dtype=torch.float64)
        gain = moments.covariance @ torch.linalg.inv(moments.covariance + noise)
        return moments.mean + (x - moments.mean) @ gain.t()

    return denoise


def generated(denoise: Denoise, start: Start, seed: int) -> Moments:
    """Such a denoiser makes the sampler an affine map, which the origin and the unit vectors tell."""
    sigmas = karras_sigmas(40, NoiseConfig())
    basis = torch.cat([torch.zeros(1, COLUMNS), torch.eye(COLUMNS)]).double()
    origin, *units = unipc(denoise, basis, sigmas)
    normal = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Moments.of(origin + start.draw(normal) * sigmas[0] @ (torch.stack(units) - origin))


def test_the_moments_of_rows_where_far_values_are_cut():
    rows = torch.randn(100_000, COLUMNS, generator=torch.Generator().manual_seed(1)).double() @ TURN
    moments = Moments.of(0.5 * rows + 0.1)  # of which nothing is far
    assert torch.allclose(moments.mean, 0.5 * rows.mean(0) + 0.1, atol=1e-4)
    assert torch.allclose(moments.covariance, 0.25 * torch.cov(rows.t(), correction=0), atol=1e-4)
    rows = torch.tensor([[-1.0, 0.5], [1.0, -0.5], [1e6, 2.5], [-1e6, -9.0]])
    at_the_cut = torch.tensor([[-1.0, 0.5], [1.0, -0.5], [2.5, 2.5], [-2.5, -2.5]]).double()
    moments = Moments.of(rows)
    torch.testing.assert_close(moments.mean, at_the_cut.mean(0))
    torch.testing.assert_close(moments.covariance, torch.cov(at_the_cut.t(), correction=0))


@pytest.mark.parametrize("factors", [(0.95, 0.97, 1.04, 0.96), (0.9, 0.9, 0.9, 0.9), (1.0, 1.0, 1.0, 1.0)])
def test_a_denoiser_of_the_wrong_covariance_is_made_up_for(factors: tuple[float, ...]):
    spectrum = SPECTRUM * torch.tensor(factors)
    wrong = denoiser(Moments(0.5 * REAL.mean, (TURN * spectrum) @ TURN.t()))
    real = generated(denoiser(REAL), Start.plain(COLUMNS), seed=98)
    before = generated(wrong, Start.plain(COLUMNS), seed=99)
    after = generated(wrong, match(real, lambda start, number: generated(wrong, start, number), ALL), seed=99)
    noise = 4 * 1.6 * (2 / ROWS) ** 0.5  # four deviations of an estimated variance of 1.6
    assert (after.covariance - real.covariance).abs().max() < max(
        noise, 0.35 * (before.covariance - real.covariance).abs().max()
    )
    assert (after.mean - real.mean).abs().max() < 4 * (1.6 / ROWS) ** 0.5


def turned(angle: float, *variances: float) -> Tensor:
    """The covariance of three columns with these variances along axes that are turned about two of them."""
    c, s = torch.tensor(angle).double().cos(), torch.tensor(angle).double().sin()
    one, zero = torch.ones(()).double(), torch.zeros(()).double()
    about_first = torch.stack([one, zero, zero, zero, c, -s, zero, s, c]).reshape(3, 3)
    about_last = torch.stack([c, -s, zero, s, c, zero, zero, zero, one]).reshape(3, 3)
    turn = about_first @ about_last
    return (turn * torch.tensor(variances).double()) @ turn.t()


def root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.sqrt()) @ vectors.t()


GENERATED, WANTED = turned(0.7, 1.0, 0.55, 0.3), turned(0.79, 1.03, 0.5, 0.32)


def test_one_round_is_exact_where_the_two_covariances_have_other_axes(monkeypatch: pytest.MonkeyPatch):
    assert (GENERATED @ WANTED - WANTED @ GENERATED).abs().max() > 0.02
    monkeypatch.setattr(start_module, "FLOOR", 0.0)
    zero = torch.zeros(3).double()
    start = Start.plain(3).corrected(Moments(zero, WANTED), Moments(zero, GENERATED), range(3))
    flow = root(GENERATED)  # of plain noise it makes what is generated
    torch.testing.assert_close(flow @ start.matrix @ start.matrix.t() @ flow, WANTED, rtol=0, atol=1e-12)
    # and to stretch by the roots of both, one after the other, is not enough
    naive = torch.linalg.inv(flow) @ root(WANTED)
    naive = (naive + naive.t()) / 2
    assert (flow @ naive @ naive.t() @ flow - WANTED).abs().max() > 1e-4


def test_columns_that_are_not_free_are_left_alone():
    moments = Moments(torch.ones(3).double(), WANTED)
    none = Start.plain(3).corrected(moments, Moments(0 * moments.mean, GENERATED), ())
    assert torch.equal(none.matrix, torch.eye(3).double())
    assert not none.shift.any()
    gap = torch.tensor([0.03, 0.02, -0.03]).double()
    plain = Start(torch.eye(3).double(), torch.tensor([0.0, 0.2, 0.0]).double())
    start = plain.corrected(Moments(gap, WANTED), Moments(0 * gap, GENERATED), (0, 2))
    assert torch.equal(start.matrix[1], plain.matrix[1])
    assert torch.equal(start.matrix[:, 1], plain.matrix[:, 1])
    assert start.shift[1] == plain.shift[1]
    pair = torch.tensor([0, 2])
    alone = Start.plain(2).corrected(
        Moments(gap[pair], WANTED[pair][:, pair]), Moments(0 * gap[pair], GENERATED[pair][:, pair]), range(2)
    )
    torch.testing.assert_close(start.matrix[pair][:, pair], alone.matrix)
    torch.testing.assert_close(start.shift[pair], alone.shift)
    assert (alone.matrix - torch.eye(2)).abs().max() > 0.005
    assert alone.shift.abs().min() > 0.005


def test_directions_without_extent_are_left_alone_and_none_is_stretched_beyond_a_tenth():
    flat = torch.diag(torch.tensor([1.0, 1e-6]).double())
    start = Start.plain(2).corrected(
        Moments(torch.zeros(2).double(), flat), Moments(torch.tensor([0.0, 1e-3]).double(), 2 * flat), range(2)
    )
    assert start.matrix[1, 1] == pytest.approx(1, abs=1e-3)
    assert abs(start.shift[1]) < 1e-3
    zero = torch.zeros(2).double()
    start = Start.plain(2).corrected(
        Moments(zero, torch.eye(2).double()), Moments(zero + 5, 0.1 * torch.eye(2).double()), range(2)
    )
    assert torch.allclose(start.matrix, 1.1 * torch.eye(2).double())
    assert start.shift.abs().max() <= 0.1 + 1e-12
