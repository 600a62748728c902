"""Whole passes and TD steps of small perceptrons on a GPU, against the same in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.critics import td_step
from synther.agents.layers import numbers
from synther.agents.rows import Batch
from synther.agents.stacked import Stack, draw_stack
from synther.kernels import perceptrons

pytestmark = pytest.mark.cuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CASES = [
    # members, critics, next values, rows, observation columns, width, hidden layers
    (2, 2, 2, 256, 17, 256, 2),
    (1, 10, 2, 100, 64, 64, 1),
    (3, 2, 1, 33, 3, 128, 3),
    (2, 1, 3, 256, 371, 256, 2),
]
ACTIONS = 6


def stack(members: int, ensemble: int, sizes: tuple[int, ...]) -> Stack:
    sources = [torch.Generator().manual_seed(member) for member in range(members)]
    return draw_stack(sources, sizes, CPU, ensemble=ensemble)


def on(networks: Stack, device: torch.device, dtype: torch.dtype) -> Stack:
    return Stack(networks.weights.detach().to(device, dtype, copy=True).requires_grad_(), networks.sizes)


def batch(rows: Tensor, observation: int) -> Batch:
    return Batch.of(rows, observation, ACTIONS)


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got.detach().cpu().double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=["highest", "high"])
def margin(request):
    """The relative error that each precision allows: float32 has 24 bits, tf32 has 11."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield {"highest": 1e-5, "high": 2e-2}[request.param]
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("outputs", [1, 6, 40])
def test_a_pass_is_its_definition(outputs, margin):
    torch.manual_seed(0)
    exact = stack(3, 2, (23, 256, 256, outputs))
    x = torch.randn(3, 100, 30)[..., :23]  # rows are not contiguous, as in a batch
    got = on(exact, CUDA, torch.float32)
    assert perceptrons.fits(got.rows, x.cuda(), got.sizes)
    with torch.no_grad():
        wanted = on(exact, CPU, torch.float64)(x.double())
        assert relative(got(x.cuda()), wanted) < margin


@pytest.mark.parametrize("case", CASES, ids=str)
def test_td_steps_are_their_definition(case, margin):
    members, critics, values, rows, observation, width, layers = case
    torch.manual_seed(0)
    first = stack(members, critics, (observation + ACTIONS, *(width,) * layers, 1))
    networks = [on(first, CPU, torch.float64), on(first, CUDA, torch.float32)]
    followers = [one.clone() for one in networks]
    adams = [Adam(one.weights, 1e-3, decay=0.1) for one in networks]
    # As after many steps. Adam's first steps amplify rounding: they depend on the signs of the tiniest gradients.
    mean, square = 1e-3 * torch.randn(first.weights.shape), 1e-5 * (1 + torch.rand(first.weights.shape))
    for adam in adams:
        adam.mean.copy_(mean)
        adam.square.copy_(square)
        adam.count.fill_(1000)
    for _ in range(3):
        drawn = torch.randn(members, 5, rows, 2 * observation + ACTIONS + 2)
        drawn[..., observation + ACTIONS + 1] = (torch.rand(members, 5, rows) < 0.3).float()
        next_values = torch.randn(members, values, rows)
        losses = []
        for one, adam, follower in zip(networks, adams, followers, strict=True):
            given = batch(drawn.to(one.weights), observation).at(2)
            how = {"weight": 0.5, "follower": follower, "tau": 0.3}
            losses.append(td_step(one, given, next_values.to(one.weights), 0.9, adam, **how))
        assert losses[1].shape == (members, critics)
        assert relative(losses[1], losses[0]) < margin
    exact, got = adams
    used = sum(numbers(first.sizes))  # the kernels leave the numbers behind the weights as they are
    assert float(got.count) == 1003
    start = first.weights.detach().double()
    moved = [
        [pair[device].weights.detach().cpu().double() - start for device in (1, 0)] for pair in (networks, followers)
    ]
    for ours, theirs in [(got.mean, exact.mean), (got.square, exact.square)]:
        assert relative(ours[..., :used], theirs[..., :used]) < margin
    for ours, theirs in moved:  # weights move by a thousandth of their size, so rounding them counts more
        assert relative(ours[..., :used], theirs[..., :used]) < max(margin, 1e-4)


def test_only_small_networks_of_equal_layers_run_here():
    x = torch.zeros(1, 256, 4, device=CUDA)
    for sizes, fits in [((4, 256, 1), True), ((4, 256, 128, 1), False), ((4, 512, 1), False), ((4, 1), False)]:
        weights = stack(1, 1, sizes).rows.detach()
        assert perceptrons.fits(weights.cuda(), x, sizes) is fits
        assert not perceptrons.fits(weights, x.cpu(), sizes)
        assert not perceptrons.fits(weights.cuda().double(), x.double(), sizes)
    many = torch.zeros(1, 100_000, 4, device=CUDA)
    assert not perceptrons.fits(stack(1, 1, (4, 256, 1)).rows.detach().cuda(), many, (4, 256, 1))
