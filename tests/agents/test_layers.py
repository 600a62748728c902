"""Gradients written by hand are those that PyTorch finds for the same networks written in its own operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.agents.layers import numbers, outputs, outputs_and_slopes

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
