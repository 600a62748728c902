"""A network and a loss from outside the package, written once in plain PyTorch, are fitted and sampled from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import FitConfig, NoiseConfig, SamplerConfig
from synther.diffusion.edm import Problem, squared_error
from synther.diffusion.fit import FitResult, fit, fit_together
from synther.diffusion.networks import DenoisingNetwork
from synther.errors import ConfigError

from ..support.watch import Stopped, Watch

NOISE = NoiseConfig()
COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]])


class Gated(DenoisingNetwork):
    """Two layers whose noise level scales the hidden one. A scalar parameter, and one that nothing depends on."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.columns = columns
        self.enter, self.gate, self.leave = nn.Linear(columns, width), nn.Linear(2, width), nn.Linear(width, columns)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, c_noise: Tensor) -> Tensor:
        gate = self.gate(torch.cat([c_noise, c_noise**2], dim=1))
        return self.gain * self.leave(functional.gelu(self.enter(x)) * gate)


@dataclass(frozen=True)
class GatedConfig:
    width: int = 32

    def build(self, columns: int) -> Gated:
        return Gated(columns, self.width)


def charbonnier(network: DenoisingNetwork, problem: Problem, scale: float = 1.0) -> Tensor:
    """A smooth absolute error."""
    error = network(problem.inputs, problem.c_noise).float() - problem.target
    return ((error**2 + scale**2).sqrt() - scale).mean()


def rows(count: int = 4000, seed: int = 0) -> Tensor:
    normal = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return normal @ torch.linalg.cholesky(COVARIANCE).t()


GATED = GatedConfig()


def run(
    data: Tensor, seed: int = 0, network: GatedConfig = GATED, loss=charbonnier, how: dict | None = None, **options
):
    config = FitConfig(**{"steps": 60, "batch_size": 64, "evaluate_every": 20, **options})
    return fit(data, network, config, NOISE, seed=seed, loss=loss, **(how or {}))


def weights(result: FitResult[Gated]) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in result.network.parameters()])


def test_it_learns_a_correlated_gaussian():
    result = run(rows(), steps=500, batch_size=128, learning_rate=1e-2, evaluate_every=250)
    assert type(result.network) is Gated
    sampler = BlockSampler(result.network, NOISE, SamplerConfig("heun", 20))
    drawn = torch.cat([sampler.draw(0, block) for block in range(8)])
    # An unfitted network gives covariance 0. Five standard errors of 4,096 rows are 0.11; the fit is short.
    assert float(torch.cov(drawn.t())[0, 1]) == pytest.approx(0.8, abs=0.2)
    assert torch.equal(result.network.idle, torch.ones(3))
    assert float(result.network.gain) != 1.0


def test_several_are_each_alone():
    data = [rows(300), 2 * rows(200, 1)]
    config = FitConfig(steps=60, batch_size=64, evaluate_every=20)
    together = fit_together(data, GatedConfig(), config, NOISE, seeds=[4, 1], loss=charbonnier)
    for result, given, seed in zip(together, data, (4, 1), strict=True):
        torch.testing.assert_close(weights(result), weights(run(given, seed)), rtol=0, atol=1e-6)


def test_a_killed_fit_is_resumed_and_another_refused(tmp_path):
    data, options, path = rows(300), {"checkpoint_every": 20}, tmp_path / "fit"
    with pytest.raises(Stopped):
        run(data, how={"checkpoint": path, "progress": Watch(40)}, **options)
    assert torch.equal(weights(run(data, how={"checkpoint": path}, **options)), weights(run(data, **options)))
    others = ({"network": GatedConfig(width=16)}, {"loss": squared_error}, {"loss": partial(charbonnier, scale=2.0)})
    for other in others:
        with pytest.raises(ConfigError, match="other data or options"):
            run(data, **other, how={"checkpoint": path}, **options)
