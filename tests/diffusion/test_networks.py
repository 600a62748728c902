from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.diffusion.config import NetworkConfig
from synther.diffusion.edm import Problem, squared_error
from synther.diffusion.gradient import ByAutograd, ByHand, FlatWeights, loss_and_gradient
from synther.diffusion.networks import DenoisingNetwork, InferenceNetwork, Network, distinct_rows, rearranged

SMALL = {"width": 24, "depth": 3, "embedding": 12, "frequencies": 5}


def network(columns: int, **options) -> Network:
    torch.manual_seed(0)
    return Network(columns, NetworkConfig(**{**SMALL, **options})).double().requires_grad_(False)


def rows(count: int, columns: int) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_papers_size_and_one_level_for_all_rows():
    # walker2d: 17 + 6 + 1 + 17 + 1 columns.
    count = sum(parameter.numel() for parameter in Network(42, NetworkConfig()).parameters())
    assert count == 6_497_066
    net, row = network(7), rows(9, 7)
    torch.testing.assert_close(net.at_noise(row, 0.3), net(row, torch.full((9, 1), 0.3, dtype=torch.float64)))


@pytest.mark.parametrize("kind", ["residual", "mlp"])
def test_architecture_is_the_references(kind):
    net = network(7, kind=kind)
    w = dict(net.named_parameters())
    row, level = rows(9, 7), rows(9, 1)

    angle = 2 * math.pi * level @ net.frequencies[None, :]
    time = torch.cat([level, torch.sin(angle), torch.cos(angle)], dim=1)
    assert time.shape == (9, 1 + 2 * 5)
    time = time @ w["level_in.weight"].T + w["level_in.bias"]
    time = time / (1 + torch.exp(-time))
    time = time @ w["level_out.weight"].T + w["level_out.bias"]
    x = row @ w["row_in.weight"].T + w["row_in.bias"] + time
    x = x @ w["widen.weight"].T + w["widen.bias"]
    for block in range(3):
        y = torch.where(x > 0, x, 0) @ w["block_weight"][block].T + w["block_bias"][block]
        x = x + y if kind == "residual" else y
    expected = torch.where(x > 0, x, 0) @ w["row_out.weight"].T + w["row_out.bias"]

    layers = ("level_in", "level_out", "row_in", "widen", "row_out")
    assert set(w) == {
        *(f"{name}.{part}" for name in layers for part in ("weight", "bias")),
        "block_weight",
        "block_bias",
    }
    torch.testing.assert_close(net(row, level), expected, rtol=0, atol=1e-13)


def test_how_weights_and_frequencies_begin():
    torch.manual_seed(0)
    net = Network(3, NetworkConfig(width=64, depth=4)).requires_grad_(False)
    bound = 1 / math.sqrt(64)
    for parameter in (net.block_weight, net.block_bias):
        assert parameter.abs().max() <= bound
        # Uniform on [-b, b] has variance b^2 / 3; its sample variance a relative deviation of sqrt(0.8 / n).
        assert float(parameter.var()) / (bound**2 / 3) == pytest.approx(1, abs=5 * math.sqrt(0.8 / parameter.numel()))
    torch.manual_seed(0)
    net = Network(2, NetworkConfig(width=4, depth=1, embedding=4, frequencies=4000))
    assert "frequencies" not in dict(net.named_parameters())
    assert "frequencies" in net.state_dict()
    assert abs(net.frequencies.mean()) < 5 / math.sqrt(4000)
    assert abs(net.frequencies.var() - 1) < 5 * math.sqrt(2 / 4000)


def test_a_wide_row_is_squeezed_only_on_request():
    def rank(net: Network) -> int:
        return int(torch.linalg.matrix_rank(net.widen.weight @ net.row_in.weight))

    assert rank(network(20)) == 20
    assert rank(network(20, squeeze=True)) == SMALL["embedding"]
    assert network(5).row_in.out_features == SMALL["embedding"] == network(5, squeeze=True).row_in.out_features


@pytest.mark.parametrize("kind", ["residual", "mlp"])
@pytest.mark.parametrize("columns", [1, 7, 8, 16, 42])
def test_inference_is_the_same_function(columns, kind):
    net = network(columns, kind=kind)
    fast, row = InferenceNetwork(net, torch.float64), rows(10, columns)
    for level in (-1.5, 0.2, 1.1, 0.2):  # the last is remembered
        torch.testing.assert_close(fast.at_noise(row, level), net.at_noise(row, level), rtol=0, atol=1e-12)


def test_inference_answers_in_the_rows_type():
    net = network(6)
    row = rows(10, 6)
    answer = InferenceNetwork(net, torch.float32).at_noise(row, 0.1)
    assert answer.dtype == torch.float64
    # float32 with sums of at most 24 terms: 24 roundings of 6e-8, of values of order 1.
    torch.testing.assert_close(answer, net.at_noise(row, 0.1), rtol=0, atol=24 * 6e-8 * 10)
    assert not torch.equal(answer, net.at_noise(row, 0.1))


def test_conditions_reach_the_rows_and_unknown_ones_do_not():
    torch.manual_seed(0)
    net = Network(7, NetworkConfig(**SMALL), 2).double().requires_grad_(False)
    row = rows(9, 7)
    told = torch.rand(9, 2, dtype=torch.float64)
    hidden = told.clone()
    hidden[3:, 1] = torch.nan
    fast = InferenceNetwork(net, torch.float64)
    for some in (told, hidden, hidden[[8, 1, 1, 8, 8, 1, 8, 0, 0]]):  # the last are embedded once each
        torch.testing.assert_close(fast.at_noise(row, 0.3, some), net.at_noise(row, 0.3, some), rtol=0, atol=1e-12)
    assert torch.equal(net.at_noise(row, 0.3, told)[:3], net.at_noise(row, 0.3, hidden)[:3])
    assert not torch.equal(net.at_noise(row, 0.3, told)[3:], net.at_noise(row, 0.3, hidden)[3:])
    unknown = torch.full_like(told, torch.nan)
    torch.testing.assert_close(net.at_noise(row, 0.3), net.at_noise(row, 0.3, unknown), rtol=0, atol=1e-13)
    other = hidden.clone()
    other[3:, 1] = 0.9
    assert not torch.allclose(net.at_noise(row, 0.3, other)[3:], net.at_noise(row, 0.3, hidden)[3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 2])
def test_distinct_rows_make_up_all_rows(width, dtype):
    rows = torch.tensor([[1.0, 0.5], [torch.nan, 0.5], [0.0, 2.0]], dtype=dtype)[[0, 1, 2, 2, 1, 0, 1], :width]
    distinct, place = distinct_rows(rows)
    assert len(distinct) == 3
    torch.testing.assert_close(distinct[place], rows, rtol=0, atol=0, equal_nan=True)
    assert distinct_rows(rows[:6]) is None
    assert distinct_rows(rows[:0]) is None


def test_a_rearranged_network_keeps_the_conditions_it_had():
    torch.manual_seed(0)
    net = Network(3, NetworkConfig(**SMALL), 2).requires_grad_(False)
    new = rearranged(net, [0, 1, 2], [None, 1, 0])
    row, told = rows(9, 3).float(), torch.rand(9, 2)
    mine = torch.cat([torch.full((9, 1), 0.4), told.flip(1)], dim=1)
    torch.testing.assert_close(new.at_noise(row, 0.3, mine), net.at_noise(row, 0.3, told))


small = st.integers(1, 9)


def networks(
    count: int, columns: int, config: NetworkConfig, conditions: int = 0
) -> tuple[list[Network], FlatWeights, torch.Tensor]:
    """In float64, with weights in one stack."""
    made = [Network(columns, config, conditions).double().requires_grad_(False) for _ in range(count)]
    flat = FlatWeights(made[0])
    stack = torch.stack([flat.gather(network) for network in made]).double()
    for network, vector in zip(made, stack, strict=True):
        flat.bind(network, vector)
    return made, flat, stack


def problem(members: int, batch: int, columns: int, conditions: int = 0) -> list[torch.Tensor]:
    made = [torch.randn(members, batch, width, dtype=torch.float64) for width in (columns, 1, columns)]
    if conditions:
        told = torch.rand(members, batch, conditions, dtype=torch.float64)
        made.append(told.masked_fill(torch.rand_like(told) < 0.3, torch.nan))
    return made


def derived(
    path: ByHand | ByAutograd,
    inputs: torch.Tensor,
    c_noise: torch.Tensor,
    target: torch.Tensor,
    told: torch.Tensor | None = None,
):
    path.gradient.fill_(torch.nan)
    given = [None] * len(c_noise) if told is None else told
    condition = torch.stack([path.condition(member, levels, given[member]) for member, levels in enumerate(c_noise)])
    return path(inputs, condition, target), path.gradient


@pytest.mark.parametrize("kind", ["residual", "mlp"])
@settings(max_examples=40, deadline=None)
@given(
    members=st.integers(1, 4), batch=small, columns=small, width=small, depth=st.integers(1, 4), embedding=small,
    frequencies=small, seed=small, conditions=st.integers(0, 2),
)  # fmt: skip
def test_by_hand_is_what_autograd_derives(
    kind, members, batch, columns, width, depth, embedding, frequencies, seed, conditions
):
    torch.manual_seed(seed)
    config = NetworkConfig(kind, width, depth, embedding, frequencies)
    made, flat, stack = networks(members, columns, config, conditions)
    asked = problem(members, batch, columns, conditions)
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
