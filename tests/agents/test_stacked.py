from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from synther.agents.adam import Adam
from synther.agents.stacked import Stack, draw_stack

from .tables import CPU

SIZES = (3, 8, 5, 2)


def sources(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def as_modules(stack: Stack) -> list[nn.Sequential]:
    """The same networks, one by one, out of PyTorch's own layers."""
    modules = []
    shapes = list(zip(stack.sizes[:-1], stack.sizes[1:], strict=True))
    for row in stack.weights.detach().reshape(-1, stack.weights.shape[-1]):
        layers, at, bias_at = [], 0, sum(i * o for i, o in shapes)
        for inputs, outputs in shapes:
            linear = nn.Linear(inputs, outputs)
            linear.weight.data = row[at : at + inputs * outputs].view(inputs, outputs).t().clone()
            linear.bias.data = row[bias_at : bias_at + outputs].clone()
            layers += [linear, nn.ReLU()]
            at, bias_at = at + inputs * outputs, bias_at + outputs
        modules.append(nn.Sequential(*layers[:-1]))
    return modules


def test_each_member_is_its_own_network(generator):
    stack = draw_stack(sources(0, 1), SIZES, CPU)
    x = torch.randn(2, 7, 3, generator=generator)
    expected = torch.stack([module(x[i]) for i, module in enumerate(as_modules(stack))])
    torch.testing.assert_close(stack(x), expected)


@pytest.mark.parametrize("own", [False, True])
def test_an_ensemble_sees_one_input_or_each_its_own(own, generator):
    stack = draw_stack(sources(0, 1), SIZES, CPU, ensemble=4)
    x = torch.randn(2, 4, 7, 3, generator=generator) if own else torch.randn(2, 7, 3, generator=generator)
    modules = as_modules(stack)
    seen = x if own else x.unsqueeze(1).expand(-1, 4, -1, -1)
    expected = torch.stack([modules[4 * s + e](seen[s, e]) for s in range(2) for e in range(4)]).view(2, 4, 7, 2)
    torch.testing.assert_close(stack(x), expected)
    torch.testing.assert_close(stack.one(2)(seen[:, 2]), expected[:, 2])


def test_gradients_are_those_of_the_single_networks(generator):
    stack = draw_stack(sources(0, 1), (3, 4, 1), CPU, free=(0.5,))
    x = torch.randn(2, 7, 3, generator=generator)
    gradient = Adam(stack.weights, 1.0).gradient(stack(x).square().mean((1, 2)) + 3 * stack.free[:, 0])
    for member, module in enumerate(as_modules(stack)):
        module(x[member]).square().mean().backward()
        first, second = module[0], module[2]
        parts = [first.weight.grad.t().flatten(), second.weight.grad.flatten(), first.bias.grad, second.bias.grad]
        torch.testing.assert_close(gradient[member, : 4 * 3 + 4 + 4 + 1], torch.cat(parts))
        assert gradient[member, 21:].tolist() == [3.0] + [0.0] * (gradient.shape[1] - 22)


def test_free_numbers_start_as_given_and_change_nothing_else():
    plain, more = (draw_stack(sources(3), SIZES, CPU, free=free) for free in ((), (1.0, -1.0)))
    assert more.free.tolist() == [[1.0, -1.0]]
    torch.testing.assert_close(more(torch.ones(1, 2, 3)), plain(torch.ones(1, 2, 3)), rtol=0, atol=0)


def test_first_weights_are_those_of_a_linear_layer():
    stack = draw_stack(sources(0), (100, 400, 1), CPU)
    (module,) = as_modules(stack)
    for layer, inputs in ((module[0], 100), (module[2], 400)):
        bound = 1 / math.sqrt(inputs)
        assert layer.weight.abs().max() <= bound
        # Uniform: variance bound^2 / 3, known here within 4 %, or 20 % for 400 weights.
        assert layer.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.04 if inputs == 100 else 0.2)
    assert 0.9 * 0.1 < module[0].bias.abs().max() <= 0.1


def test_weights_depend_on_the_own_seed_only():
    both, alone = draw_stack(sources(0, 1), SIZES, CPU, ensemble=2), draw_stack(sources(1), SIZES, CPU, ensemble=2)
    assert torch.equal(both.weights[1], alone.weights[0])
    assert not torch.equal(both.weights[0], both.weights[1])
    assert not torch.equal(alone.weights[0, 0], alone.weights[0, 1])


def test_adam_is_adam(generator):
    ours = torch.randn(2, 5, generator=generator).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    adam, reference = Adam(ours, 1e-2), torch.optim.Adam([theirs], lr=1e-2)
    for _ in range(10):
        gradient = torch.randn(2, 5, generator=generator)
        theirs.grad = gradient.clone()
        reference.step()
        adam.step(gradient)
    torch.testing.assert_close(ours, theirs)
    assert adam.count == 10
    before = ours.detach().clone()
    adam.step(torch.ones(2, 5), rate=torch.tensor(0.0))
    assert torch.equal(ours, before)
