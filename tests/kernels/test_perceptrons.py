"""Whole passes and TD steps of small perceptrons on a GPU, against the same in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.critics import td_step
from synther.agents.layers import numbers
from synther.agents.networks import NetworkOptions
from synther.agents.rows import Batch
from synther.agents.stacked import Networks, NetworkSpec, Stack, draw_modules, draw_stack
from synther.kernels.perceptrons import Perceptron

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


def networks(kind: str, members: int, ensemble: int, inputs: int, outputs: int, width: int, layers: int) -> Networks:
    sources = [torch.Generator().manual_seed(member) for member in range(members)]
    if kind == "mlp":
        return draw_stack(sources, (inputs, *(width,) * layers, outputs), CPU, ensemble=ensemble)
    spec = NetworkSpec(kind, inputs, outputs, NetworkOptions(width, layers))
    found = draw_modules(sources, spec, CPU, ensemble=ensemble)
    # Layer norms begin with scale 1 and shift 0, which would hide mistakes.
    weights = found.weights.detach()
    return found._with((weights + 0.1 * torch.rand_like(weights)).requires_grad_(), None)


def on(device: torch.device, dtype: torch.dtype, same: Networks) -> Networks:
    return same._with(same.weights.detach().to(device, dtype, copy=True).requires_grad_(), None)


def parameters(networks: Networks) -> Tensor:
    """Which numbers of a row are parameters. The kernels leave the padding between them as it is."""
    mask = torch.zeros(networks.weights.shape[-1])
    if isinstance(networks, Stack):
        mask[: sum(numbers(networks.sizes))] = 1
    else:
        for part in networks._parameters.views(mask).values():
            part.fill_(1)
    return mask > 0


def batch(rows: Tensor, observation: int) -> Batch:
    return Batch.of(rows, observation, ACTIONS)


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got.detach().cpu().double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=["highest", "high"])
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def margin(precision: str, kind: str) -> float:
    """The relative error that float32 (24 bits) and tf32 (11 bits) allow. With layer norm, rounding sometimes decides
    whether a unit is active: PyTorch's float32 is off by up to 0.002 in these cases."""
    if precision == "high":
        return 2e-2 if kind == "mlp" else 0.1
    return 1e-5 if kind == "mlp" else 5e-3


every_kind = pytest.mark.parametrize("kind", ["mlp", "layer_norm", "layer_norm_last"])


@every_kind
@pytest.mark.parametrize("outputs", [1, 6, 40])
def test_a_pass_is_its_definition(kind, outputs, precision):
    torch.manual_seed(0)
    first = networks(kind, 3, 2, 23, outputs, 256, 2)
    x = torch.randn(3, 100, 30)[..., :23]  # rows are not contiguous, as in a batch
    got = on(CUDA, torch.float32, first)
    assert got.perceptron.fits(got.rows, x.to(CUDA))
    with torch.no_grad():
        wanted = on(CPU, torch.float64, first)(x.double())
        assert relative(got(x.to(CUDA)), wanted) < margin(precision, kind)


@every_kind
@pytest.mark.parametrize("case", CASES, ids=str)
def test_td_steps_are_their_definition(kind, case, precision):
    members, critics, values, rows, observation, width, layers = case
    limit = margin(precision, kind)
    torch.manual_seed(0)
    first = networks(kind, members, critics, observation + ACTIONS, 1, width, layers)
    both = [on(CPU, torch.float64, first), on(CUDA, torch.float32, first)]
    followers = [one.clone() for one in both]
    adams = [Adam(one.weights, 1e-3, decay=0.1) for one in both]
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
        for one, adam, follower in zip(both, adams, followers, strict=True):
            given = batch(drawn.to(one.weights), observation).at(2)
            how = {"weight": 0.5, "follower": follower, "tau": 0.3}
            losses.append(td_step(one, given, next_values.to(one.weights), 0.9, adam, **how))
        assert losses[1].shape == (members, critics)
        assert relative(losses[1], losses[0]) < limit
    exact, got = adams
    assert float(got.count) == 1003
    here, start = parameters(first), first.weights.detach().double()
    for ours, theirs in [(got.mean, exact.mean), (got.square, exact.square)]:
        assert relative(ours.cpu()[..., here], theirs[..., here]) < limit
    for definition, kernels in (both, followers):
        wanted, moved = (one.weights.detach().cpu().double() - start for one in (definition, kernels))
        # Weights move by a thousandth of their size, so rounding them counts more.
        assert relative(moved[..., here], wanted[..., here]) < max(limit, 1e-4)


def test_only_small_networks_of_equal_layers_run_here():
    x = torch.zeros(1, 256, 4)
    for sizes, fits in [((4, 256, 1), True), ((4, 256, 128, 1), False), ((4, 512, 1), False), ((4, 1), False)]:
        rows = draw_stack([torch.Generator()], sizes, CPU, ensemble=1).rows.detach()
        kind = Perceptron(sizes)
        assert kind.fits(rows.to(CUDA), x.to(CUDA)) is fits
        assert not kind.fits(rows, x)
        assert not kind.fits(rows.to(CUDA).double(), x.to(CUDA).double())
        assert not kind.fits(rows.to(CUDA), torch.zeros(1, 100_000, 4, device=CUDA))
