"""What only a GPU can show of agents that act: captured actions and updates do what a CPU does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.pixels import worlds
from synther.pixels.own_latents import encode_own

from ..here import Here
from .test_learner import learner, live

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(worlds, "Workers", Here)
    worlds._held.cache_clear()
    yield
    worlds._held.cache_clear()


def test_a_life_is_that_of_a_cpu():
    there, here = live(learner(device=CUDA, precision="float32"), 16), live(learner(), 16)
    assert there.updates == here.updates == 4
    np.testing.assert_array_equal(there.store.counts, here.store.counts)
    np.testing.assert_allclose(there.act(), here.act(), atol=1e-2)
    for name, tensor in here.state().items():
        torch.testing.assert_close(there.state()[name].cpu(), tensor, rtol=1e-2, atol=1e-2, msg=name)
    for one, other in zip(encode_own(there), encode_own(here), strict=True):
        np.testing.assert_allclose(one.reward, other.reward, atol=1e-5)
        np.testing.assert_allclose(one.observation, other.observation, atol=0.1)


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
