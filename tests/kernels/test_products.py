"""Products of many networks at once, against the same products one by one in float64."""

from __future__ import annotations

from itertools import product as combinations

import pytest
import torch
from torch import Tensor

from synther.kernels.products import product

SHAPES = [
    (4, 4, 256, 23, 256),
    (3, 3, 100, 70, 130),
    (6, 2, 70, 256, 1),
    (3, 3, 17, 1, 130),
    (2, 2, 16, 300, 12),
    (1, 1, 1, 1, 1),
]
"""Networks, inputs, rows, depth, columns."""
OPTIONS = [
    (),
    ("bias", "rectify"),
    ("mask",),
    ("sums", "out"),
    ("out", "add"),
    ("bias", "rectify", "mask", "sums", "out", "add"),
]


def drawn(shape, dtype, device, transposed) -> dict[str, Tensor]:
    """Operands as a training has them: some transposed, and windows into something wider."""
    networks, inputs, rows, depth, columns = shape
    torch.manual_seed(0)

    def window(*size: int) -> Tensor:
        return torch.randn(*size[:-1], size[-1] + 3, dtype=dtype, device=device)[..., : size[-1]]

    return {
        "a": window(inputs, depth, rows).mT if "a" in transposed else window(inputs, rows, depth),
        "b": window(networks, columns, depth).mT if "b" in transposed else window(networks, depth, columns),
        "bias": window(networks, columns),
        "mask": window(networks, rows, columns),
        "out": window(networks, columns, rows).mT if "out" in transposed else window(networks, rows, columns),
        "sums": window(networks, columns),
    }


def algebra(given: dict[str, Tensor], options: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    g = {name: tensor.double().cpu() for name, tensor in given.items()}
    sharing = len(g["b"]) // len(g["a"])
    y = torch.stack([g["a"][index // sharing] @ right for index, right in enumerate(g["b"])])
    y = y + g["bias"][:, None] if "bias" in options else y
    y = y.clamp(min=0) if "rectify" in options else y
    y = torch.where(g["mask"] > 0, y, 0) if "mask" in options else y
    return (y + g["out"] if "add" in options else y), (g["b"].sum(1) if "sums" in options else g["sums"])


def check(shape, options, transposed, dtype, device, margin):
    given = drawn(shape, dtype, device, transposed)
    expected, expected_sums = algebra(given, options)
    tensors = {name: given[name] for name in ("bias", "mask", "out", "sums") if name in options}
    flags = {name: True for name in ("rectify", "add") if name in options}
    got = product(given["a"], given["b"], **tensors, **flags)
    assert "out" not in options or got is given["out"]
    for found, wanted in ((got, expected), (given["sums"], expected_sums)):
        assert float((found.double().cpu() - wanted).norm()) <= margin * max(1.0, float(wanted.norm()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_is_its_definition(shape):
    for options in OPTIONS:
        check(shape, options, ("a", "out"), torch.float64, "cpu", 1e-13)


@pytest.mark.cuda
@pytest.mark.parametrize(("precision", "margin"), [("highest", 2e-6), ("high", 1e-3)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_on_the_gpu(shape, precision, margin):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for options, transposed in combinations(OPTIONS, [(), ("a",), ("b",), ("a", "out")]):
            check(shape, options, transposed, torch.float32, "cuda", margin)
    finally:
        torch.set_float32_matmul_precision(before)
