"""A linear layer of one or several networks, fused with the elementwise operations before and after its product."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

Activation = Literal["relu", "silu"]
_PROCESSORS = 132
"""Number of multiprocessors of a Hopper GPU."""


def dense(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    slope: Tensor | None = None,
    skip: Tensor | None = None,
    target: Tensor | None = None,
    scale: float = 1.0,
    kind: Activation = "relu",
    activated: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute y = a @ b for a (R, D) and b (D, C), and apply other operations to y. Return y.

    Both may have an axis of networks in front. The arguments that are given are applied in this order:

    - `bias` (C,) is added.
    - y is multiplied by the derivative of the activation `kind`. `slope` is the input of the activation; for ReLU, its
      output gives the same result.
    - `skip` is added.
    - `target` is subtracted, and the difference is multiplied by `scale`.
    - The activation of y is written to `activated`, and y to `out`.
    """
    alone = all(each is None for each in (bias, slope, skip, target, activated))
    if _runs_on_triton(a) and not alone:
        return _dense_triton(a, b, bias, slope, skip, target, scale, kind, activated, out)
    if bias is None:
        y = torch.matmul(a, b)
    else:
        y = torch.addmm(bias, a, b) if a.ndim == 2 else torch.baddbmm(bias.unsqueeze(-2), a, b)
    if slope is not None and kind == "relu":
        y = torch.ops.aten.threshold_backward(y, slope, 0)
    elif slope is not None:
        y = torch.ops.aten.silu_backward(y, slope)
    if skip is not None:
        y = y.add_(skip) if out is None else torch.add(y, skip, out=out)
    if target is not None:
        y = ((y - target) * scale).to(a.dtype)
    if activated is not None and kind == "relu":
        torch.clamp_min(y, 0, out=activated)
    elif activated is not None:
        activated.copy_(functional.silu(y))
    return y if out is None or out is y else out.copy_(y)


def _runs_on_triton(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype == torch.bfloat16


def _stacked(tensor: Tensor) -> Tensor:
    """Return the tensor with an axis of networks in front, if it has none."""
    return tensor if tensor.ndim == 3 else tensor.unsqueeze(0)


def _dense_triton(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    slope: Tensor | None,
    skip: Tensor | None,
    target: Tensor | None,
    scale: float,
    kind: Activation,
    activated: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    made = a.new_empty(*a.shape[:-1], b.shape[-1]) if out is None else out
    y, a, b = _stacked(made), _stacked(a), _stacked(b)
    networks, rows, columns = y.shape
    depth = a.shape[2]
    tile = _tile(networks, rows, columns, depth)
    # The kernel needs a tensor for each argument: unused ones get y as a placeholder. Arguments of the size of y have
    # the strides of y.
    flags = [given is not None for given in (bias, slope, skip, target, activated)]
    bias, slope, skip, target, activated = (
        y if given is None else given for given in (bias, slope, skip, target, activated)
    )
    _dense_kernel[_grid(networks, rows, columns, tile)](
        a, b, y, bias, slope, skip, target, activated, scale, rows, columns, depth,
        a.stride(0), a.stride(1), *b.stride(), bias.stride(0) if bias.ndim == 2 else 0, y.stride(0), y.stride(1),
        *flags, kind == "silu", _is_even(rows, columns, depth, tile), **tile,
    )  # fmt: skip
    return made


def _tile(networks: int, rows: int, columns: int, depth: int) -> dict[str, int]:
    """Return the sizes of a kernel's tiles. If there are few tiles, they are small, so that each runs on its own
    multiprocessor. Four stages of each size fit into the shared memory of all GPUs with bf16."""
    few = networks * -(-rows // 64) * -(-columns // 32) <= 2 * _PROCESSORS
    high, wide, deep = (64, 32, 128) if few else (128, 64, 64)
    if depth <= 64:
        deep = 64
    return {"ROWS": high, "COLUMNS": wide, "DEPTH": deep, "num_warps": 4, "num_stages": 4}


def _grid(networks: int, rows: int, columns: int, tile: dict[str, int]) -> tuple[int, int]:
    """Return the number of tiles in a product, and the number of networks."""
    return -(-rows // tile["ROWS"]) * -(-columns // tile["COLUMNS"]), networks


def _is_even(rows: int, columns: int, depth: int, tile: dict[str, int]) -> bool:
    """Return whether the product divides into whole tiles, so that loads need no masks."""
    return not (rows % tile["ROWS"] or columns % tile["COLUMNS"] or depth % tile["DEPTH"])


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _dense_kernel(  # type: ignore[no-untyped-def]
        a, b, out, bias, slope, skip, target, activated, scale, rows, columns, depth,
        a_network, a_row, b_network, b_depth, b_column, bias_network, out_network, out_row,
        BIAS: tl.constexpr, SLOPE: tl.constexpr, SKIP: tl.constexpr, TARGET: tl.constexpr, ACTIVATED: tl.constexpr,
        SILU: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        across = tl.cdiv(columns, COLUMNS)
        row = ((tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
        left_start = a + network * a_network + row[:, None] * a_row
        right_start = b + network * b_network + column[None, :].to(tl.int64) * b_column
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        y = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, depth, DEPTH):
            k = start + tl.arange(0, DEPTH)
            if EVEN:
                left = tl.load(left_start + k[None, :])
                right = tl.load(right_start + k[:, None] * b_depth)
            else:
                known = k < depth
                left = tl.load(left_start + k[None, :], (row < rows)[:, None] & known[None, :], 0.0)
                right = tl.load(right_start + k[:, None] * b_depth, known[:, None] & (column < columns)[None, :], 0.0)
            y = tl.dot(left, right, y)
        if BIAS:
            y += tl.load(bias + network * bias_network + column, column < columns, 0.0)[None, :].to(tl.float32)
        place = network * out_network + row[:, None] * out_row + column[None, :]
        if SLOPE:
            x = tl.load(slope + place, inside, 0.0).to(tl.float32)
            if SILU:
                gate = tl.sigmoid(x)
                y *= gate * (1 + x * (1 - gate))
            else:
                y = tl.where(x > 0, y, 0.0)
        if SKIP:
            y += tl.load(skip + place, inside, 0.0).to(tl.float32)
        if TARGET:
            y = (y - tl.load(target + place, inside, 0.0)) * scale
        tl.store(out + place, y.to(out.dtype.element_ty), inside)
        if ACTIVATED:
            after = y * tl.sigmoid(y) if SILU else tl.maximum(y, 0.0)
            tl.store(activated + place, after.to(out.dtype.element_ty), inside)
