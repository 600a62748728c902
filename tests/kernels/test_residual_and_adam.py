from __future__ import annotations

import itertools

import pytest
import torch

from synther.kernels import residual
from synther.kernels.adam import adam_step
from synther.kernels.residual import residual_block

FLAGS = list(itertools.product([False, True], repeat=2))
ADAM = {"beta1": 0.9, "beta2": 0.99}


def block_algebra(x, weight, bias, skip, rectify):
    """The definition, in float64 on the CPU."""
    x, weight, bias = (tensor.double().cpu() for tensor in (x, weight, bias))
    y = torch.where(x > 0, x, 0) @ weight.T + bias + (x if skip else 0)
    return torch.where(y > 0, y, 0) if rectify else y


def block_inputs(rows: int, width: int, dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(0)
    x = torch.randn(rows, width, dtype=dtype, device=device)
    weight = torch.randn(width, width, dtype=dtype, device=device) / width**0.5
    return x, weight, torch.randn(width, dtype=dtype, device=device)


def relative(got, expected) -> float:
    expected = expected.double().cpu()
    return float((got.double().cpu() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("skip", "rectify"), FLAGS)
def test_residual_block_is_its_definition(skip, rectify):
    x, weight, bias = block_inputs(5, 6, torch.float64)
    before = x.clone()
    got = residual_block(x, weight, bias, skip=skip, rectify=rectify)
    torch.testing.assert_close(got, block_algebra(x, weight, bias, skip, rectify), rtol=0, atol=1e-14)
    assert torch.equal(x, before), "the input is still needed"


class Adam:
    """The state of one optimiser over a vector."""

    def __init__(self, weights: torch.Tensor, working: torch.dtype | None = None) -> None:
        self.weights = weights
        self.working = weights if working is None else weights.to(working)
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.count = weights.new_zeros(())
        self.rate = weights.new_zeros(())
        self.follower = weights.clone()

    def step(self, gradient: torch.Tensor, rate: float, max_grad_norm: float | None) -> None:
        self.count += 1
        self.rate.fill_(rate)
        adam_step(
            self.weights, self.working, gradient, self.mean, self.square, self.count, self.rate, **ADAM,
            max_grad_norm=max_grad_norm, follower=self.follower, tau=0.25,
        )  # fmt: skip


# An update is the rate times a ratio of order 1. In float32 the bias correction 1 - 0.99^t is off by 6e-8 / 0.01, the
# update by half of that: 3e-6 of a rate of at most 0.1 at each of six steps, 2e-6 together.
@pytest.mark.parametrize(("dtype", "margin"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6, None], ids=["clipping", "not clipping", "no limit"])
def test_adam_is_pytorchs_with_clipping(dtype, margin, max_grad_norm):
    torch.manual_seed(0)
    ours = Adam(torch.randn(200, dtype=dtype))
    theirs = torch.nn.Parameter(ours.weights.clone())
    optimiser = torch.optim.Adam([theirs], betas=(ADAM["beta1"], ADAM["beta2"]))
    start = ours.weights.clone()
    for step in range(1, 7):
        # Norms about 0.14, 1.3, 0.21, ...: some below 0.5 even where clipping is on.
        gradient = torch.randn(200, dtype=dtype) * (0.01 if step % 2 else 0.09)
        rate = 0.1 / step
        theirs.grad = gradient.clone()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([theirs], max_grad_norm)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        ours.step(gradient, rate, max_grad_norm)
        torch.testing.assert_close(ours.weights, theirs.detach(), rtol=0, atol=margin)
    assert (ours.weights - start).abs().max() > 0.1


@pytest.mark.parametrize("working", [torch.bfloat16, torch.float32])
def test_adam_refreshes_the_working_copy(working):
    torch.manual_seed(0)
    state = Adam(torch.randn(50, dtype=torch.float64), working)
    alone = Adam(state.weights.clone())
    gradient = torch.randn(50).to(working)
    for _ in range(3):
        state.step(gradient, 0.01, 1.0)
        alone.step(gradient, 0.01, 1.0)
    assert torch.equal(state.working, state.weights.to(working))
    assert torch.equal(state.weights, alone.weights)


def test_a_follower_moves_by_its_share_of_the_new_weights():
    state = Adam(torch.zeros(3, dtype=torch.float64))
    for _ in range(2):  # with a constant gradient, Adam's step is its rate
        state.step(torch.ones(3, dtype=torch.float64), 0.1, max_grad_norm=None)
    torch.testing.assert_close(state.weights, torch.full((3,), -0.2, dtype=torch.float64))
    expected = 0.75 * (0.25 * -0.1) + 0.25 * -0.2
    torch.testing.assert_close(state.follower, torch.full((3,), expected, dtype=torch.float64))


@pytest.mark.cuda
@pytest.mark.parametrize(("rows", "width"), [(128, 256), (384, 512), (256, 1024), (100, 512), (128, 96)])
@pytest.mark.parametrize(("skip", "rectify"), FLAGS)
def test_residual_block_on_the_gpu(rows, width, skip, rectify):
    x, weight, bias = block_inputs(rows, width, torch.bfloat16, "cuda")
    got = residual_block(x, weight, bias, skip=skip, rectify=rectify)
    assert got.dtype == torch.bfloat16
    # bf16 keeps 8 bits: rounding the result costs 2e-3 at most, rounding in between as much again.
    assert relative(got, block_algebra(x, weight, bias, skip, rectify)) < 5e-3


@pytest.mark.cuda
def test_residual_block_runs_on_triton_where_its_tiles_fit():
    if torch.cuda.get_device_capability()[0] not in (9, 10) or residual.triton is None:
        pytest.skip("needs Triton and a data-centre GPU since Hopper")
    for rows, width, fits in [(128, 256, True), (384, 512, True), (100, 512, False), (128, 96, False)]:
        x, *_ = block_inputs(rows, width, torch.bfloat16, "cuda")
        assert residual._block_runs_on_triton(x) is fits
        assert not residual._block_runs_on_triton(x.float())


@pytest.mark.cuda
@pytest.mark.parametrize("working", [None, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6, None], ids=["clipping", "not clipping", "no limit"])
def test_adam_on_the_gpu(working, max_grad_norm):
    torch.manual_seed(0)
    size = 5000  # not a multiple of the kernel's block
    exact = Adam(torch.randn(size, dtype=torch.float64))
    got = Adam(exact.weights.float().cuda(), working)
    exact.weights.copy_(got.weights)
    for step in range(1, 7):
        gradient = (torch.randn(size) / size**0.5).to(working or torch.float32)
        exact.step(gradient.double(), 0.1 / step, max_grad_norm)
        got.step(gradient.cuda(), 0.1 / step, max_grad_norm)
    assert relative(got.weights, exact.weights) < 1e-6
    assert relative(got.follower, exact.follower) < 1e-6
    # 1 - 0.99 has a relative error of 1e-6 in float32.
    assert relative(got.mean, exact.mean) < 1e-6
    assert relative(got.square, exact.square) < 2e-6
    assert torch.equal(got.working, got.weights.to(working or torch.float32))
