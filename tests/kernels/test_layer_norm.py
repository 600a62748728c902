"""Bias, layer norm and ReLU of many networks at once, against PyTorch's own layers one by one in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from synther.kernels.layer_norm import norm_relu, norm_relu_backward

SHAPES = [(3, 5, 7), (2, 40, 256), (4, 17, 300), (2, 3, 1)]
"""Networks, rows, columns."""
NAMES = ("x", "bias", "scale", "shift")


def drawn(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Parameters as a training has them: windows into the rows of all weights."""
    networks, rows, columns = shape
    torch.manual_seed(0)
    given = {"x": 3 * torch.randn(networks, rows, columns, dtype=dtype) + 1}
    given |= {name: torch.randn(networks, columns + 3, dtype=dtype)[:, :columns] for name in NAMES[1:]}
    given["towards"] = torch.randn(networks, rows, columns, dtype=dtype)
    return {name: tensor.to(device) for name, tensor in given.items()}


def algebra(given: dict[str, Tensor], norm_first: bool) -> list[Tensor]:
    """The result, and the gradients in x, the scale and the shift."""
    g = {name: tensor.cpu().to(torch.float64, copy=True).requires_grad_() for name, tensor in given.items()}
    found = []
    for x, bias, scale, shift in zip(*(g[name] for name in NAMES), strict=True):
        y = x + bias if norm_first else (x + bias).relu()
        y = layer_norm(y, x.shape[1:], scale, shift)
        found.append(y.relu() if norm_first else y)
    result = torch.stack(found)
    return [result.detach(), *torch.autograd.grad(result, [g["x"], g["scale"], g["shift"]], g["towards"])]


def check(shape: tuple[int, int, int], norm_first: bool, dtype: torch.dtype, device: str, margin: float) -> None:
    given = drawn(shape, dtype, device)
    expected = algebra(given, norm_first)
    x, *parameters = (given[name] for name in NAMES)
    kept = x.clone()
    result, statistics = norm_relu(x, *parameters, norm_first=norm_first)
    sums = tuple(torch.full_like(given[name], torch.nan) for name in ("scale", "shift"))
    gradients = [
        norm_relu_backward(given["towards"].clone(), x, statistics, *parameters, norm_first=norm_first, sums=asked)
        for asked in (sums, None)
    ]
    assert torch.equal(x, kept), "the backward pass needs it"
    # The gradient in x is a difference of terms of this size, which cancel where there is a single column.
    terms = given["towards"] * given["scale"].unsqueeze(1) * statistics[1].unsqueeze(-1)
    for found in gradients:
        assert float((found.double().cpu() - expected[1]).norm()) <= margin * float(terms.norm())
    for found, wanted in zip((result, *sums), (expected[0], *expected[2:]), strict=True):
        assert float((found.double().cpu() - wanted).norm()) <= margin * max(1.0, float(wanted.norm()))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_its_definition(shape, norm_first):
    check(shape, norm_first, torch.float64, "cpu", 1e-13)


@pytest.mark.cuda
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, (16, 1024, 512), (2, 20, 2500), (1, 3, 5000)], ids=str)
def test_it_is_its_definition_on_the_gpu(shape, norm_first):
    check(shape, norm_first, torch.float32, "cuda", 3e-6)
