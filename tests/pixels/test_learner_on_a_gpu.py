"""What only a GPU can show of agents that act: captured actions and updates do what a CPU does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Noise
from synther.pixels.agent import convolving
from synther.pixels.latents import encode_own

from .pictures import CPU
from .test_learner import learner, live

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("in_this_process")]
CUDA = torch.device("cuda")


def test_a_life_is_that_of_a_cpu():
    """Up to the first update, and that from the same numbers, which the two devices draw differently."""
    there, here = (live(learner(device=device, precision="float32"), 16, train=False) for device in (CUDA, CPU))
    np.testing.assert_array_equal(there.store.counts, here.store.counts)
    np.testing.assert_allclose(there.act(), here.act(), atol=1e-4)
    for one, other in zip(encode_own(there), encode_own(here), strict=True):
        np.testing.assert_allclose(one.reward, other.reward, atol=1e-5)
        np.testing.assert_allclose(one.observation, other.observation, atol=1e-3)
    draw = torch.Generator().manual_seed(0)
    numbers, cuts = torch.randint(0, 1_000, (2, 8), generator=draw), torch.randint(0, 9, (2, 8, 4), generator=draw)
    normal = torch.randn(2, 8, 2, generator=draw)
    found = []
    for made in (here, there):
        with convolving("float32", made.device):
            picked = made.store.pick(numbers.to(made.device))
            batch = made.store.batch(picked, cuts.to(made.device), torch.float32)
            losses = made.algorithm.update(batch, Noise(normal.to(made.device), torch.zeros(0)), 0)
        found.append({name: loss.cpu() for name, loss in losses.items()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_life_in_bf16_is_the_same_each_time():
    one, other = (live(learner(device=CUDA), 20) for _ in range(2))
    for name, tensor in one.state().items():
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, other.state()[name]), name


def test_heads_that_come_back_are_those_of_the_captured_update():
    made = live(learner(device=CUDA, precision="float32"), 16)
    places = {name: tensor.data_ptr() for name, tensor in made.state().items()}
    before = made.act()
    made.take_heads({name: torch.zeros_like(tensor) for name, tensor in made.heads([0, 1]).items()}, [0, 1])
    assert {name: tensor.data_ptr() for name, tensor in made.state().items()} == places
    assert not np.allclose(made.act(), before, atol=1e-4)
    made.train(1)
    assert made.state()["actor_adam.mean"].abs().sum() == 0  # critics that say 0 everywhere teach the policy nothing
