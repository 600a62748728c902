from __future__ import annotations

import pytest
import torch

from synther.agents.adam import Adam
from synther.agents.stacked import draw_stack

from .plain import networks
from .tables import CPU

SIZES = (3, 8, 5, 2)


def sources(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_member_is_its_own_network(generator):
    stack = draw_stack(sources(0, 1), SIZES, CPU)
    x = torch.randn(2, 7, 3, generator=generator)
    expected = torch.stack([networks(stack, member)(x[member]) for member in range(2)])
    torch.testing.assert_close(stack(x), expected)
    more = draw_stack(sources(0, 1), SIZES, CPU, free=(1.0, -1.0))
    assert more.free.tolist() == [[1.0, -1.0]] * 2
    assert torch.equal(more(x), stack(x))


@pytest.mark.parametrize("own", [False, True])
def test_an_ensemble_sees_one_input_or_each_its_own(own, generator):
    stack = draw_stack(sources(0, 1), SIZES, CPU, ensemble=4)
    x = torch.randn(2, 4, 7, 3, generator=generator) if own else torch.randn(2, 7, 3, generator=generator)
    seen = x if own else x.unsqueeze(1).expand(-1, 4, -1, -1)
    expected = torch.stack([networks(stack, s)[e](seen[s, e]) for s in range(2) for e in range(4)]).view(2, 4, 7, 2)
    torch.testing.assert_close(stack(x), expected)
    torch.testing.assert_close(stack.one(2)(seen[:, 2]), expected[:, 2])


def test_gradients_are_those_of_the_single_networks(generator):
    stack = draw_stack(sources(0, 1), (3, 4, 1), CPU, free=(0.5,))
    x = torch.randn(2, 7, 3, generator=generator)
    gradient = Adam(stack.weights, 1.0).gradient(stack(x).square().mean((1, 2)) + 3 * stack.free[:, 0])
    for member in range(2):
        module = networks(stack, member)
        module(x[member]).square().mean().backward()
        first, second = module.layers
        parts = [first.weight.grad.t().flatten(), second.weight.grad.flatten(), first.bias.grad, second.bias.grad]
        torch.testing.assert_close(gradient[member, : 4 * 3 + 4 + 4 + 1], torch.cat(parts))
        assert gradient[member, 21:].tolist() == [3.0] + [0.0] * (gradient.shape[1] - 22)


def test_weights_depend_on_the_own_seed_only():
    both, alone = draw_stack(sources(0, 1), SIZES, CPU, ensemble=2), draw_stack(sources(1), SIZES, CPU, ensemble=2)
    assert torch.equal(both.weights[1], alone.weights[0])
    assert not torch.equal(both.weights[0], both.weights[1])
    assert not torch.equal(alone.weights[0, 0], alone.weights[0, 1])
