from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from synther.diffusion.config import NetworkConfig
from synther.diffusion.flat import FlatWeights
from synther.diffusion.gradient import loss_and_gradient
from synther.diffusion.networks import Network

small = st.integers(1, 9)


def poisoned(network: Network) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(parameter, torch.nan) for name, parameter in network.named_parameters()}


def problem(batch: int, columns: int) -> list[torch.Tensor]:
    return [torch.randn(batch, width, dtype=torch.float64) for width in (columns, 1, columns)]


@pytest.mark.parametrize("kind", ["residual", "mlp"])
@settings(max_examples=30, deadline=None)
@given(batch=small, columns=small, width=small, depth=st.integers(1, 4), embedding=small, frequencies=small, seed=small)
def test_is_what_autograd_derives(kind, batch, columns, width, depth, embedding, frequencies, seed):
    torch.manual_seed(seed)
    network = Network(columns, NetworkConfig(kind, width, depth, embedding, frequencies)).double()
    rows, level, target = problem(batch, columns)

    loss = functional.mse_loss(network(rows, level), target)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in network.named_parameters()}

    gradient = poisoned(network)
    with torch.no_grad():
        returned = loss_and_gradient(network, network.features(level), rows, target, gradient)

    torch.testing.assert_close(returned, loss.detach(), rtol=1e-12, atol=0)
    # Values of order 1, sums of at most a hundred terms in float64, a dozen products deep.
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)


def test_lands_in_windows_of_one_vector():
    torch.manual_seed(0)
    network = Network(5, NetworkConfig(width=7, depth=2, embedding=6, frequencies=3)).double()
    flat = FlatWeights(network)
    vector = torch.full((flat.size,), torch.nan, dtype=torch.float64)
    windows = dict(zip(flat.names, flat.views(vector), strict=True))
    apart = poisoned(network)
    rows, level, target = problem(4, 5)
    with torch.no_grad():
        loss_and_gradient(network, network.features(level), rows, target, windows)
        loss_and_gradient(network, network.features(level), rows, target, apart)
    torch.testing.assert_close(windows, apart, rtol=0, atol=0)
    covered = sum(parameter.numel() for parameter in network.parameters())
    assert int(vector.isnan().sum()) == flat.size - covered


def test_a_small_step_against_it_lowers_the_loss_by_its_square():
    torch.manual_seed(0)
    network = Network(4, NetworkConfig(width=16, depth=3, embedding=8)).double().requires_grad_(False)
    rows, level, target = problem(32, 4)
    gradient = poisoned(network)
    before = loss_and_gradient(network, network.features(level), rows, target, gradient)
    slope = sum(float((g**2).sum()) for g in gradient.values())
    step = 1e-6
    for name, parameter in network.named_parameters():
        parameter -= step * gradient[name]
    after = loss_and_gradient(network, network.features(level), rows, target, poisoned(network))
    # The next term of the expansion is of order step.
    assert (before - after) / step == pytest.approx(slope, rel=1e-4)
