from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from synther.diffusion.config import NetworkConfig, NoiseConfig
from synther.diffusion.edm import Denoiser
from synther.diffusion.likelihood import log_likelihood
from synther.diffusion.networks import Network

NOISE = NoiseConfig()


def integrated_exactly(gaussian, x: Tensor, noise: NoiseConfig) -> Tensor:
    """What `log_likelihood` tends to with the steps: the flow's end under its prior, and the flow's expansion."""
    end = gaussian.flow(x, noise.sigma_min, noise.sigma_max)
    variance = noise.sigma_max**2 + noise.sigma_data**2
    prior = -0.5 * (end**2 / variance + math.log(2 * math.pi * variance)).sum(1)
    values = gaussian.values
    return prior + 0.5 * ((values + noise.sigma_max**2) / (values + noise.sigma_min**2)).log().sum()


def test_gaussian_density(gaussian, generator):
    # Scaled rows have mean 0, and the prior N(0, sigma_max^2 + 1) relies on it: a mean m costs z m / sigma_max nats, a
    # variance other than 1 only about z^2 / sigma_max^2, a part in 6400.
    centred = type(gaussian)(torch.zeros_like(gaussian.mean), gaussian.covariance)
    x = centred.draw(50, NOISE.sigma_min, generator)
    found = log_likelihood(centred.denoise, x, NOISE, steps=64)
    assert found.shape == (50,)
    assert (found - centred.log_density(x, NOISE.sigma_min)).abs().max() < 1e-3


# Over all levels the divergence is flat at both ends, where any rule of integration is good; so a part of them, too.
@pytest.mark.parametrize(
    ("noise", "counts"), [(NOISE, (32, 64, 128)), (NoiseConfig(sigma_min=0.3, sigma_max=3), (16, 32, 64))]
)
def test_order_of_convergence_is_4(noise, counts, gaussian, generator):
    x = gaussian.draw(50, noise.sigma_min, generator)
    exact = integrated_exactly(gaussian, x, noise)
    errors = [float((log_likelihood(gaussian.denoise, x, noise, steps) - exact).norm()) for steps in counts]
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    # Order 4 and a term in 1 / steps, which halves from pair to pair.
    assert orders[1] == pytest.approx(4, abs=0.15)
    assert abs(orders[1] - 4) < 0.75 * abs(orders[0] - 4)


class Mixture:
    """Gaussians with spherical covariances: a denoiser that is not linear."""

    def __init__(self, shares: list[float], means: list[list[float]], variances: list[float]) -> None:
        self.shares, self.means, self.variances = (
            torch.tensor(values, dtype=torch.float64) for values in (shares, means, variances)
        )

    def log_parts(self, x: Tensor, sigma: float) -> Tensor:
        """(N, K)"""
        variances = self.variances + sigma**2
        squares = ((x[:, None] - self.means) ** 2).sum(2)
        return self.shares.log() - 0.5 * (squares / variances + x.shape[1] * (2 * math.pi * variances).log())

    def log_density(self, x: Tensor, sigma: float) -> Tensor:
        return self.log_parts(x, sigma).logsumexp(1)

    def denoise(self, x: Tensor, sigma: float) -> Tensor:
        share = self.log_parts(x, sigma).softmax(1)[:, :, None]
        keep = (self.variances / (self.variances + sigma**2))[:, None]
        return (share * (self.means + keep * (x[:, None] - self.means))).sum(1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        part = torch.multinomial(self.shares, count, replacement=True, generator=generator)
        normal = torch.randn(count, self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[part] + self.variances[part, None].sqrt() * normal


def test_density_of_a_mixture(generator):
    mixture = Mixture([0.3, 0.7], [[1.4, 0.7], [-0.6, -0.3]], [0.3, 0.15])
    x = mixture.draw(100, generator)
    found = log_likelihood(mixture.denoise, x, NOISE, steps=128)
    # Mean 0 and variances 1.04 and 0.41: the prior is a part in 6400 off, as for the Gaussian.
    assert (found - mixture.log_density(x, NOISE.sigma_min)).abs().max() < 1e-3


def test_runs_on_a_network_without_keeping_its_graph():
    torch.manual_seed(0)
    network = Network(3, NetworkConfig(width=16, depth=2, embedding=8)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        found = log_likelihood(Denoiser(network, NOISE), x, NOISE, steps=8)
    assert found.isfinite().all()
    assert not found.requires_grad
    one_by_one = torch.cat([log_likelihood(Denoiser(network, NOISE), row[None], NOISE, steps=8) for row in x])
    torch.testing.assert_close(found, one_by_one, rtol=1e-9, atol=1e-9)
