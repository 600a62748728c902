"""Layers with what comes before and after their product, against the same in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther.kernels.dense import dense

SHAPES = [(256, 1024, 1024), (1024, 128, 640), (100, 33, 130), (70, 300, 42), (3, 1, 2)]
"""Rows, depth, columns: tiles that fit, large ones, and such that fit nowhere."""
OPTIONS = [
    (),
    ("bias", "activated"),
    ("slope", "skip", "out"),
    ("bias", "target"),
    ("bias", "slope", "skip", "target", "activated", "out"),
]


def algebra(a: Tensor, b: Tensor, given: dict[str, Tensor], kind: str) -> tuple[Tensor, Tensor]:
    """The layer's result, and its activation, in float64 on the CPU."""
    a, b = a.double().cpu(), b.double().cpu()
    given = {name: tensor.double().cpu() for name, tensor in given.items()}
    y = a @ b
    if "bias" in given:
        y = y + given["bias"].unsqueeze(-2)
    if "slope" in given:
        x = given["slope"].clone().requires_grad_()
        after = torch.relu(x) if kind == "relu" else x * torch.sigmoid(x)
        y = y * torch.autograd.grad(after.sum(), x)[0]
    if "skip" in given:
        y = y + given["skip"]
    if "target" in given:
        y = (y - given["target"]) * 0.25
    return y, torch.relu(y) if kind == "relu" else y * torch.sigmoid(y)


def check(
    shape: tuple[int, int, int], lead: tuple[int, ...], kind: str, dtype: torch.dtype, device: str, margin: float
):
    rows, depth, columns = shape
    torch.manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*lead, *size, device=device).to(dtype)

    a, b = drawn(rows, depth), drawn(columns, depth).mT / depth**0.5
    for options in OPTIONS:
        given = {name: drawn(rows, columns) for name in ("slope", "skip", "target") if name in options}
        given |= {"bias": drawn(columns)} if "bias" in options else {}
        into = {name: torch.empty_like(drawn(rows, columns)) for name in ("activated", "out") if name in options}
        scale = {"scale": 0.25} if "target" in options else {}
        expected, after = algebra(a, b, given, kind)
        got = dense(a, b, kind=kind, **given, **into, **scale)
        assert "out" not in options or got is into["out"]
        for found, wanted in ((got, expected), *([(into["activated"], after)] if "activated" in into else [])):
            assert found.dtype == dtype
            assert float((found.double().cpu() - wanted).norm()) <= margin * float(wanted.norm()), options


@pytest.mark.parametrize("kind", ["relu", "silu"])
@pytest.mark.parametrize("lead", [(), (3,)], ids=["one network", "three"])
def test_a_layer_is_its_definition(lead, kind):
    check((7, 5, 6), lead, kind, torch.float64, "cpu", 1e-13)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["relu", "silu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_on_the_gpu(shape, kind):
    # bf16 keeps 8 bits: rounding the result costs 2e-3 at most.
    check(shape, (3,), kind, torch.bfloat16, "cuda", 4e-3)
    check(shape, (3,), kind, torch.float32, "cuda", 1e-5)


@pytest.mark.cuda
def test_a_layer_of_one_network_on_the_gpu():
    check((256, 1024, 512), (), "relu", torch.bfloat16, "cuda", 4e-3)
