"""What only a GPU can show: captured rounds do the work of single updates, and what a CPU does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Noise
from synther.pixels.agent import PixelAgent, convolving
from synther.pixels.latents import encode

from ..support.states import assert_close, assert_member
from .pictures import CONFIGS, noise, stacks

pytestmark = pytest.mark.cuda

FRAMES = noise(channels=3, size=21)
every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def fresh(config, seeds=(3, 4), device="cuda", precision="float32") -> PixelAgent:
    return PixelAgent(config, FRAMES, seeds, device=torch.device(device), precision=precision)


@every
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_round_is_its_updates_one_by_one(config, precision):
    captured, single = (fresh(config, precision=precision) for _ in range(2))
    captured.train(31)
    for _ in range(31):
        single.train(1)
    assert_close(captured, single)


@every
def test_members_together_equal_each_alone(config):
    together = fresh(config)
    together.train(22)
    for index, seed in enumerate((3, 4)):
        alone = fresh(config, [seed])
        alone.train(22)
        assert_member(together, index, alone)


@every
def test_resumed_equals_uninterrupted(config, tmp_path):
    whole, first, second = (fresh(config) for _ in range(3))
    whole.train(30)
    first.train(14)
    first.save(tmp_path / "agent.safetensors")
    second.train(11)  # captured before the state is loaded
    second.load(tmp_path / "agent.safetensors")
    second.train(16)
    assert_close(whole, second)


@every
def test_an_update_is_that_of_a_cpu(config):
    """From the same numbers, which the two devices draw differently."""
    here, there = fresh(config, device="cpu"), fresh(config)
    draw = torch.Generator().manual_seed(0)
    picked = torch.randint(0, len(here.store), (2, 8), generator=draw)
    cuts = torch.randint(0, 9, (2, 8, here.algorithm.uniforms), generator=draw)
    normal = torch.randn(2, 8, here.algorithm.normals, generator=draw)
    found = []
    for made in (here, there):
        with convolving("float32", made.device):
            batch = made.store.batch(picked.to(made.device), cuts.to(made.device), torch.float32)
            losses = made.algorithm.update(batch, Noise(normal.to(made.device), torch.zeros(0)), 0)
        found.append({name: loss.cpu() for name, loss in losses.items()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_latents_and_policies_are_those_of_a_cpu(tmp_path):
    made = fresh(CONFIGS["drq_bc"])
    made.train(3)
    made.save(tmp_path / "agent.safetensors")
    exact = encode(tmp_path / "agent.safetensors", FRAMES, device="cpu")
    for precision, margin in (("float32", 1e-4), ("bf16", 0.1)):
        for rows, others in zip(exact, encode(made, FRAMES, precision=precision), strict=True):
            np.testing.assert_allclose(rows.observation, others.observation, atol=margin)
    seen = stacks(FRAMES)
    np.testing.assert_allclose(made.policy().act(seen), made.policy(made.device).act(seen), atol=1e-2)


def test_bf16_is_close():
    """The first losses, of the same weights and frames.

    The policy's is divided by the size of the values: where these have both signs, a little rounding changes it much.
    """
    exact, rough = (fresh(CONFIGS["drq_bc"], range(16), precision=precision) for precision in ("float32", "bf16"))
    for made in (exact, rough):
        made.train(1)
    np.testing.assert_allclose(rough.losses()["critic"], exact.losses()["critic"], rtol=0.05)
    off = np.abs(rough.losses()["actor"] / exact.losses()["actor"] - 1)
    assert np.median(off) < 0.01
    assert rough.state()["encoder"].dtype == torch.float32
