"""The derivative by hand is what autograd derives, for one network and for several."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.diffusion.config import NetworkConfig
from synther.diffusion.edm import Problem, squared_error
from synther.diffusion.gradient import ByAutograd, ByHand, FlatWeights, loss_and_gradient
from synther.diffusion.networks import DenoisingNetwork, Network

small = st.integers(1, 9)


def networks(count: int, columns: int, config: NetworkConfig) -> tuple[list[Network], FlatWeights, torch.Tensor]:
    """In float64, with weights in one stack."""
    made = [Network(columns, config).double().requires_grad_(False) for _ in range(count)]
    flat = FlatWeights(made[0])
    stack = torch.stack([flat.gather(network) for network in made]).double()
    for network, vector in zip(made, stack, strict=True):
        flat.bind(network, vector)
    return made, flat, stack


def problem(members: int, batch: int, columns: int) -> list[torch.Tensor]:
    return [torch.randn(members, batch, width, dtype=torch.float64) for width in (columns, 1, columns)]


def derived(path: ByHand | ByAutograd, inputs: torch.Tensor, c_noise: torch.Tensor, target: torch.Tensor):
    path.gradient.fill_(torch.nan)
    condition = torch.stack([path.condition(member, levels) for member, levels in enumerate(c_noise)])
    return path(inputs, condition, target), path.gradient


@pytest.mark.parametrize("kind", ["residual", "mlp"])
@settings(max_examples=40, deadline=None)
@given(
    members=st.integers(1, 4), batch=small, columns=small, width=small, depth=st.integers(1, 4), embedding=small,
    frequencies=small, seed=small,
)  # fmt: skip
def test_by_hand_is_what_autograd_derives(kind, members, batch, columns, width, depth, embedding, frequencies, seed):
    torch.manual_seed(seed)
    made, flat, stack = networks(members, columns, NetworkConfig(kind, width, depth, embedding, frequencies))
    asked = problem(members, batch, columns)
    one, other = (path(made, flat, stack, squared_error, torch.float64) for path in (ByHand, ByAutograd))
    (losses, gradient), (expected_losses, expected) = derived(one, *asked), derived(other, *asked)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=0)
    # Values of order 1, sums of at most a hundred terms in float64, a dozen products deep. The gaps between parameters
    # stay untouched in both.
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13, equal_nan=True)
    covered = sum(parameter.numel() for parameter in made[0].parameters())
    assert int(gradient.isnan().sum()) == members * (flat.size - covered)


def test_autograd_derives_the_loss_itself():
    torch.manual_seed(0)
    made, flat, stack = networks(1, 3, NetworkConfig(width=7, depth=2, embedding=6))
    asked = problem(1, 4, 3)
    losses, gradient = derived(ByAutograd(made, flat, stack, squared_error, torch.float64), *asked)
    network = made[0].requires_grad_(True)
    loss = squared_error(network, Problem(*(part[0] for part in asked)))
    loss.backward()
    torch.testing.assert_close(losses[0], loss.detach())
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(flat.views(gradient[0])[name], parameter.grad)


class Doubled(Network):
    """A subclass, whose forward pass is another."""

    def forward(self, x: torch.Tensor, c_noise: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x, c_noise)


def absolute_error(network: DenoisingNetwork, problem: Problem) -> torch.Tensor:
    return (network(problem.inputs, problem.c_noise) - problem.target).abs().mean()


@pytest.mark.parametrize(
    ("network", "loss", "path"),
    [(Network, squared_error, ByHand), (Doubled, squared_error, ByAutograd), (Network, absolute_error, ByAutograd)],
)
def test_the_fast_path_is_for_its_own_network_and_loss(network, loss, path):
    made = network(3, NetworkConfig(width=4, depth=1, embedding=4))
    flat = FlatWeights(made)
    assert type(loss_and_gradient([made], flat, flat.gather(made)[None], loss, torch.float32)) is path
