"""Data whose denoiser, flow and density are known exactly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor


class Gaussian:
    """N(mean, C) has D(x; sigma) = mean + C (C + sigma^2 I)^-1 (x - mean); all else follows for each eigenvector."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self.mean, self.covariance = mean, covariance
        self.values, self.vectors = torch.linalg.eigh(covariance)

    def along(self, x: Tensor, factors: Tensor) -> Tensor:
        """x (N, D) with its part along each eigenvector, as seen from the mean, multiplied."""
        return self.mean + ((x - self.mean) @ self.vectors * factors) @ self.vectors.t()

    def denoise(self, x: Tensor, sigma: float) -> Tensor:
        return self.along(x, self.values / (self.values + sigma**2))

    def flow(self, x: Tensor, start: float, end: float) -> Tensor:
        """Where the probability-flow ODE takes x from noise level `start` to `end`."""
        return self.along(x, ((self.values + end**2) / (self.values + start**2)).sqrt())

    def draw(self, count: int, sigma: float, generator: torch.Generator) -> Tensor:
        normal = torch.randn(count, len(self.mean), generator=generator, dtype=self.mean.dtype)
        return self.mean + (normal * (self.values + sigma**2).sqrt()) @ self.vectors.t()

    def log_density(self, x: Tensor, sigma: float) -> Tensor:
        variances = self.values + sigma**2
        squares = ((x - self.mean) @ self.vectors) ** 2
        return -0.5 * (squares / variances + (2 * math.pi * variances).log()).sum(1)


@pytest.fixture
def gaussian() -> Gaussian:
    """Three columns of unlike spreads, correlated, off centre, in float64."""
    turn = torch.linalg.qr(torch.tensor([[1.0, 2.0, 0.5], [-1.0, 0.3, 1.0], [0.2, 1.0, -2.0]], dtype=torch.float64))[0]
    spreads = torch.tensor([0.2, 0.7, 1.8], dtype=torch.float64)
    return Gaussian(torch.tensor([0.5, -0.4, 0.1], dtype=torch.float64), turn @ spreads.diag() @ turn.t())
