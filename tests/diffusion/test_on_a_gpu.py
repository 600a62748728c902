"""What only a GPU can show: captured rounds, bf16 weights and large blocks do the same work."""

from __future__ import annotations

import pytest
import torch

from synther import compute
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.edm import squared_error
from synther.diffusion.fit import fit, fit_together
from synther.diffusion.start import Start

from ..support.watch import Stopped, Watch
from .test_own_network import GatedConfig, charbonnier

pytestmark = pytest.mark.cuda

NETWORK = NetworkConfig(width=256, depth=3)
COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]])


def gaussian(rows: int) -> torch.Tensor:
    normal = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    return (normal @ torch.linalg.cholesky(COVARIANCE).T).cuda()


@pytest.mark.parametrize(("precision", "margin"), [("bf16", 2e-2), ("float32", 1e-4)])
@pytest.mark.parametrize("members", [1, 2])
def test_by_hand_is_what_autograd_derives(members, precision, margin):
    config, rows = FitConfig(steps=100, evaluate_every=50), [gaussian(10_000)] * members
    given = {"seeds": range(members), "precision": precision}
    losses = []
    for loss in (squared_error, lambda network, problem: squared_error(network, problem)):  # which has no fast path
        results = fit_together(rows, NETWORK, config, NoiseConfig(), loss=loss, **given)
        losses.append([entry["held_out"] for result in results for entry in result.history])
    assert losses[0] == pytest.approx(losses[1], rel=margin)


@pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
@pytest.mark.parametrize("members", [1, 2])
def test_a_network_from_outside_is_captured(members, precision, monkeypatch):
    config, rows = FitConfig(steps=105, evaluate_every=50), [gaussian(10_000)] * members
    given = {"seeds": range(members), "precision": precision, "loss": charbonnier}
    captured = fit_together(rows, GatedConfig(), config, NoiseConfig(), **given)
    monkeypatch.setattr(compute, "capture", lambda update, device, state: update)
    plain = fit_together(rows, GatedConfig(), config, NoiseConfig(), **given)
    for one, other in zip(captured, plain, strict=True):
        for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
def test_resumed_equals_uninterrupted(tmp_path, precision):
    config = FitConfig(steps=305, evaluate_every=50, checkpoint_every=100)
    rows, place = gaussian(10_000), tmp_path / "checkpoint"
    whole = fit(rows, NETWORK, config, NoiseConfig(), precision=precision)
    with pytest.raises(Stopped):
        fit(rows, NETWORK, config, NoiseConfig(), precision=precision, checkpoint=place, progress=Watch(200))
    resumed = fit(rows, NETWORK, config, NoiseConfig(), precision=precision, checkpoint=place)
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_learns_a_gaussian(precision):
    config = FitConfig(steps=3_000, learning_rate=1e-3)
    network = fit(gaussian(50_000), NETWORK, config, NoiseConfig(), precision=precision).network
    blocks = BlockSampler(network, NoiseConfig(), SamplerConfig(), precision)
    drawn = blocks.draw(0, 0).double().cpu()
    # 30K rows: a standard error of 0.008 for variances; the rest of the margin is for the short fit.
    assert torch.allclose(torch.cov(drawn.T), COVARIANCE.double(), atol=0.06)
    assert drawn.mean(0).abs().max() < 0.04


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("kind", ["sde", "unipc"])
def test_captured_blocks_are_those_of_plain_calls(kind, precision):
    network = fit(gaussian(10_000), NETWORK, FitConfig(steps=200), NoiseConfig()).network
    blocks = BlockSampler(
        network, NoiseConfig(), SamplerConfig(kind, 8, restarts=1, restart_steps=3), precision, Start.plain(2)
    )
    draw = blocks.captured()
    drawn = [draw(7, block) for block in (2, 0, 2)]
    assert torch.equal(drawn[0], drawn[2])
    for block, rows in zip((2, 0), drawn, strict=False):
        torch.testing.assert_close(rows, blocks.draw(7, block), rtol=1e-3, atol=1e-3)
