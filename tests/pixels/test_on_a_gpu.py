"""What only a GPU can show: captured rounds and actions do the work of single ones, and what a CPU does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Noise
from synther.pixels.agent import PixelAgent, convolving
from synther.pixels.latents import encode, encode_own

from ..support.states import assert_close, assert_member, assert_same
from .pictures import CONFIGS, CPU, noise, stacks
from .test_learner import learner, live

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("in_this_process")]
CUDA = torch.device("cuda")

FRAMES = noise(channels=3, size=21)
every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def fresh(config, seeds=(3, 4), device=CUDA, precision="float32") -> PixelAgent:
    return PixelAgent(config, FRAMES, seeds, device=device, precision=precision)


def losses_of_one_update(made, pick) -> dict[str, torch.Tensor]:
    """From the same random numbers on every device, which each would draw differently."""
    draw, own = torch.Generator().manual_seed(0), made.algorithm
    numbers = torch.randint(0, 1_000, (2, 8), generator=draw).to(made.device)
    cuts = torch.randint(0, 9, (2, 8, own.uniforms), generator=draw).to(made.device)
    normal = torch.randn(2, 8, own.normals, generator=draw).to(made.device)
    with convolving("float32", made.device):
        losses = own.update(made.store.batch(pick(numbers), cuts, torch.float32), Noise(normal, torch.zeros(0)), 0)
    return {name: loss.cpu() for name, loss in losses.items()}


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
    made = [fresh(config, device=device) for device in (CPU, CUDA)]
    here, there = (losses_of_one_update(one, lambda numbers: numbers % len(made[0].store)) for one in made)
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_latents_and_policies_are_those_of_a_cpu(tmp_path):
    made = fresh(CONFIGS["drq_bc"])
    made.train(3)
    made.save(tmp_path / "agent.safetensors")
    exact = encode(tmp_path / "agent.safetensors", FRAMES, shifts=1, device="cpu")
    for precision, margin in (("float32", 1e-4), ("bf16", 0.1)):
        for rows, others in zip(exact, encode(made, FRAMES, shifts=1, precision=precision), strict=True):
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


def test_a_learners_life_is_that_of_a_cpu():
    """Up to the first update, and that too."""
    there, here = (live(learner(device=device, precision="float32"), 16, train=False) for device in (CUDA, CPU))
    np.testing.assert_array_equal(there.store.counts, here.store.counts)
    np.testing.assert_allclose(there.act(), here.act(), atol=1e-4)
    for one, other in zip(encode_own(there), encode_own(here), strict=True):
        np.testing.assert_allclose(one.reward, other.reward, atol=1e-5)
        np.testing.assert_allclose(one.observation, other.observation, atol=1e-3)
    here_losses, there_losses = (losses_of_one_update(made, made.store.pick) for made in (here, there))
    torch.testing.assert_close(here_losses, there_losses, rtol=1e-4, atol=1e-5)


def test_a_learners_life_in_bf16_is_the_same_each_time():
    one, other = (live(learner(device=CUDA), 20) for _ in range(2))
    assert all(tensor.isfinite().all() for tensor in one.state().values())
    assert_same(one, other)


def test_heads_that_come_back_are_those_of_the_captured_update():
    made = live(learner(device=CUDA, precision="float32"), 16)
    places = {name: tensor.data_ptr() for name, tensor in made.state().items()}
    before = made.act()
    made.take_heads({name: torch.zeros_like(tensor) for name, tensor in made.heads([0, 1]).items()}, [0, 1])
    assert {name: tensor.data_ptr() for name, tensor in made.state().items()} == places
    assert not np.allclose(made.act(), before, atol=1e-4)
    made.train(1)
    assert made.state()["actor_adam.mean"].abs().sum() == 0  # critics that say 0 everywhere teach the policy nothing
