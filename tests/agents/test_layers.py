"""Networks of members, side by side and differentiated by hand, are those of PyTorch's own operations one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.agents.layers import numbers, outputs, outputs_and_slopes
from synther.agents.stacked import draw_stack

from .plain import networks
from .tables import CPU

SIZES = (3, 5, 4, 1)
PADDING = 2


def plain(weights: Tensor, x: Tensor, sizes=SIZES) -> Tensor:
    """The definition, network by network."""
    found = []
    for index, row in enumerate(weights):
        parts = torch.split(row[: sum(numbers(sizes))], numbers(sizes))
        hidden = x[index * len(x) // len(weights)]
        depth = len(sizes) - 1
        for layer in range(depth):
            hidden = hidden @ parts[layer].view(sizes[layer], sizes[layer + 1]) + parts[depth + layer]
            hidden = hidden.relu() if layer < depth - 1 else hidden
        found.append(hidden)
    return torch.stack(found)


def drawn(networks: int, inputs: int, sizes=SIZES) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    weights = torch.randn(networks, sum(numbers(sizes)) + PADDING, generator=source, dtype=torch.float64)
    x = torch.randn(inputs, 6, sizes[0], generator=source, dtype=torch.float64)
    return weights.requires_grad_(), x.requires_grad_()


@pytest.mark.parametrize(("networks", "inputs"), [(2, 2), (6, 2), (1, 1)])
@pytest.mark.parametrize("sizes", [SIZES, (3, 2), (3, 7, 2)])
def test_outputs_and_their_gradients(networks, inputs, sizes):
    weights, x = drawn(networks, inputs, sizes)
    got, expected = outputs(weights, x, sizes), plain(weights, x, sizes)
    torch.testing.assert_close(got, expected)
    towards = torch.randn_like(expected)
    for mine, theirs in zip(*(torch.autograd.grad(y, (weights, x), towards) for y in (got, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_only_what_is_asked_for_is_differentiated():
    weights, x = drawn(2, 2)
    (in_x,) = torch.autograd.grad(outputs(weights.detach(), x, SIZES).sum(), x)
    torch.testing.assert_close(in_x, torch.autograd.grad(plain(weights, x).sum(), x)[0])
    assert not outputs(weights.detach(), x.detach(), SIZES).requires_grad


@pytest.mark.parametrize(("networks", "inputs"), [(2, 2), (6, 2)])
def test_slopes_and_the_gradients_of_both(networks, inputs):
    weights, x = drawn(networks, inputs)
    value, slope = outputs_and_slopes(weights, x, SIZES)
    own = x.detach().repeat_interleave(networks // inputs, 0).requires_grad_()
    expected = plain(weights, own).squeeze(-1)
    (expected_slope,) = torch.autograd.grad(expected.sum(), own, create_graph=True)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, expected_slope)

    towards, along = torch.randn_like(value), torch.randn_like(slope)

    def gradient(value: Tensor, slope: Tensor) -> Tensor:
        return torch.autograd.grad((value * towards).sum() + (slope.tanh() * along).sum(), weights)[0]

    torch.testing.assert_close(gradient(value, slope), gradient(expected, expected_slope))


STACKED = (3, 8, 5, 2)


def sources(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_member_is_its_own_network(generator):
    stack = draw_stack(sources(0, 1), STACKED, CPU)
    x = torch.randn(2, 7, 3, generator=generator)
    expected = torch.stack([networks(stack, member)(x[member]) for member in range(2)])
    torch.testing.assert_close(stack(x), expected)
    more = draw_stack(sources(0, 1), STACKED, CPU, free=(1.0, -1.0))
    assert more.free.tolist() == [[1.0, -1.0]] * 2
    assert torch.equal(more(x), stack(x))


@pytest.mark.parametrize("own", [False, True])
def test_an_ensemble_sees_one_input_or_each_its_own(own, generator):
    stack = draw_stack(sources(0, 1), STACKED, CPU, ensemble=4)
    x = torch.randn(2, 4, 7, 3, generator=generator) if own else torch.randn(2, 7, 3, generator=generator)
    seen = x if own else x.unsqueeze(1).expand(-1, 4, -1, -1)
    expected = torch.stack([networks(stack, s)[e](seen[s, e]) for s in range(2) for e in range(4)]).view(2, 4, 7, 2)
    torch.testing.assert_close(stack(x), expected)
    torch.testing.assert_close(stack.one(2)(seen[:, 2]), expected[:, 2])


def test_weights_depend_on_the_own_seed_only():
    both, alone = draw_stack(sources(0, 1), STACKED, CPU, ensemble=2), draw_stack(sources(1), STACKED, CPU, ensemble=2)
    assert torch.equal(both.weights[1], alone.weights[0])
    assert not torch.equal(both.weights[0], both.weights[1])
    assert not torch.equal(alone.weights[0, 0], alone.weights[0, 1])
