"""Matrix products of many small networks at once, fused with bias, ReLU, mask and column sums."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None


def product(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    rectify: bool = False,
    mask: Tensor | None = None,
    out: Tensor | None = None,
    add: bool = False,
    sums: Tensor | None = None,
) -> Tensor:
    """Return a @ b (N, R, C) for N networks at once, from a (S, R, D) and b (N, D, C).

    Each a is shared by N / S consecutive networks. Then `bias` (N, C) is added. With `rectify`, negative numbers are
    set to 0. Where `mask` (N, R, C) is not positive, the result is set to 0. It is written to `out`, or with `add`
    added to it. `sums` (N, C) receives b summed over D: if the product is the gradient of matrices, this is the
    gradient of their biases. All strides are allowed, but the last axis of `bias`, `mask` and `sums` must be
    contiguous.
    """
    if triton is not None and a.is_cuda and a.dtype == torch.float32:
        out = b.new_empty(b.shape[0], a.shape[1], b.shape[2]) if out is None else out
        whole = _product_runs_on_triton(a, b)
        (_product_triton if whole else _product_cublas)(a, b, bias, rectify, mask, out, add, sums)
        return out
    if a.shape[0] == b.shape[0]:
        y = torch.bmm(a, b)
    else:
        y = torch.matmul(a.unsqueeze(1), torch.unflatten(b, 0, (len(a), -1))).flatten(0, 1)
    if bias is not None:
        y += bias.unsqueeze(1)
    if rectify:
        y.relu_()
    if mask is not None:
        y *= mask > 0
    if sums is not None:
        column_sums(b, sums)
    if out is None:
        return y
    return out.add_(y) if add else out.copy_(y)


def column_sums(b: Tensor, sums: Tensor) -> None:
    """Write the sum of b (N, D, C) over D to `sums` (N, C)."""
    if triton is not None and b.is_cuda and b.dtype == torch.float32:
        networks, depth, columns = b.shape
        _sum_kernel[(triton.cdiv(columns, 64), networks)](b, sums, columns, depth, *b.stride(), sums.stride(0), 64, 64)
    else:
        sums.copy_(b.sum(1))


def _product_triton(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    rectify: bool,
    mask: Tensor | None,
    out: Tensor,
    add: bool,
    sums: Tensor | None,
) -> None:
    """Compute `product` with one Triton kernel."""
    rows, depth, columns, networks = *a.shape[1:], b.shape[2], len(b)
    tile = _product_tile(b, rows, columns, depth)
    grid = (triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(columns, tile["COLUMNS"]), networks)
    # The kernel needs a tensor for each argument: unused ones get `out` as a placeholder.
    no_bias, no_mask, no_sums = bias is None, mask is None, sums is None
    bias, mask, sums = (out if given is None else given for given in (bias, mask, sums))
    tf32 = torch.get_float32_matmul_precision() != "highest"
    _product_kernel[grid](
        a, b, out, bias, mask, sums, rows, columns, depth, *a.stride(), *b.stride(), *out.stride(),
        bias.stride(0), *mask.stride()[:2], sums.stride(0), networks // len(a),
        not no_bias, rectify, not no_mask, not no_sums, add, "tf32" if tf32 else "ieee", **tile,
    )  # fmt: skip


def _product_tile(b: Tensor, rows: int, columns: int, depth: int) -> dict[str, int]:
    """Return tile sizes that are not much larger than the product, and at least 16, which matrix units need.

    The fastest matrix units of Hopper need tf32, at least 64 rows, and operands that are contiguous along the depth.
    """
    tallest = 64 if b.stride(1) == 1 else 32
    high, wide = (min(most, max(16, 1 << (size - 1).bit_length())) for most, size in ((tallest, rows), (64, columns)))
    return {"ROWS": high, "COLUMNS": wide, "DEPTH": 32 if depth > 16 else 16, "num_warps": 4, "num_stages": 3}


def _product_runs_on_triton(a: Tensor, b: Tensor) -> bool:
    """Return whether one Triton kernel is faster than cuBLAS followed by a pass over its result.

    This is the case for products that are small or thin, or that share inputs. Measured on an H200: for
    256 x 256 x 256, up to 160 networks, but never if neither operand is contiguous along the depth, as in the gradient
    of a matrix (`benchmarks/agents.py` shows the effect).
    """
    rows, depth, columns = a.shape[1], *b.shape[1:]
    if len(a) < len(b) or min(rows, depth, columns) < 64:
        return True
    return a.stride(2) == 1 and len(b) * rows * depth * columns <= 160 * 256**3


def _product_cublas(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    rectify: bool,
    mask: Tensor | None,
    out: Tensor,
    add: bool,
    sums: Tensor | None,
) -> None:
    """Compute `product` with cuBLAS, and bias, ReLU, mask and addition with one kernel after it."""
    networks, _, columns = b.shape
    if sums is not None:
        column_sums(b, sums)
    if bias is None and mask is None and not rectify:
        torch.baddbmm(out, a, b, out=out) if add else torch.bmm(a, b, out=out)
        return
    made = torch.bmm(a, b)
    size = made.shape[1] * columns
    _finish_kernel[(triton.cdiv(size, 1024), networks)](
        made, out, made if bias is None else bias, made if mask is None else mask, size, columns,
        *out.stride(), 0 if bias is None else bias.stride(0), *(made if mask is None else mask).stride()[:2],
        bias is not None, rectify, mask is not None, add, 1024,
    )  # fmt: skip


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _product_kernel(  # type: ignore[no-untyped-def]
        a, b, out, bias, mask, sums, rows, columns, depth,
        a_network, a_row, a_depth, b_network, b_depth, b_column, out_network, out_row, out_column,
        bias_network, mask_network, mask_row, sums_network, sharing,
        BIAS: tl.constexpr, RECTIFY: tl.constexpr, MASK: tl.constexpr, SUMS: tl.constexpr, ADD: tl.constexpr,
        PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        across = tl.cdiv(columns, COLUMNS)
        tile = tl.program_id(0)
        row = ((tile // across) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        column = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
        in_row, in_column = (row < rows)[:, None], (column < columns)[None, :]
        left_start = a + (network // sharing) * a_network + row[:, None] * a_row
        right_start = b + network * b_network + column[None, :] * b_column
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        summed = tl.zeros((COLUMNS,), dtype=tl.float32)
        for start in range(0, depth, DEPTH):
            k = start + tl.arange(0, DEPTH)
            left = tl.load(left_start + k[None, :] * a_depth, in_row & (k < depth)[None, :], 0.0)
            right = tl.load(right_start + k[:, None] * b_depth, (k < depth)[:, None] & in_column, 0.0)
            total = tl.dot(left, right, total, input_precision=PRECISION)
            if SUMS:
                summed += tl.sum(right, 0)
        if BIAS:
            total += tl.load(bias + network * bias_network + column, column < columns, 0.0)[None, :]
        if RECTIFY:
            total = tl.maximum(total, 0.0)
        if MASK:
            gate = mask + network * mask_network + row[:, None] * mask_row + column[None, :]
            total = tl.where(tl.load(gate, in_row & in_column, 0.0) > 0, total, 0.0)
        place = out + network * out_network + row[:, None] * out_row + column[None, :] * out_column
        if ADD:
            total += tl.load(place, in_row & in_column, 0.0)
        tl.store(place, total, in_row & in_column)
        if SUMS:  # the sum is the same in every tile of these columns, so only one tile writes it
            tl.store(sums + network * sums_network + column, summed, (column < columns) & (tile < across))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _finish_kernel(  # type: ignore[no-untyped-def]
        made, out, bias, mask, size, columns, out_network, out_row, out_column, bias_network, mask_network, mask_row,
        BIAS: tl.constexpr, RECTIFY: tl.constexpr, MASK: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row, column, inside = at // columns, at % columns, at < size
        total = tl.load(made + network * size + at, inside)
        if BIAS:
            total += tl.load(bias + network * bias_network + column, inside)
        if RECTIFY:
            total = tl.maximum(total, 0.0)
        if MASK:
            gate = tl.load(mask + network * mask_network + row * mask_row + column, inside)
            total = tl.where(gate > 0, total, 0.0)
        place = out + network * out_network + row * out_row + column * out_column
        if ADD:
            total += tl.load(place, inside)
        tl.store(place, total, inside)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _sum_kernel(  # type: ignore[no-untyped-def]
        b, sums, columns, depth, b_network, b_depth, b_column, sums_network,
        COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        start_of = b + network * b_network + column[None, :] * b_column
        summed = tl.zeros((COLUMNS,), dtype=tl.float32)
        for start in range(0, depth, DEPTH):
            k = (start + tl.arange(0, DEPTH)).to(tl.int64)
            summed += tl.sum(
                tl.load(start_of + k[:, None] * b_depth, (k < depth)[:, None] & (column < columns), 0.0), 0
            )
        tl.store(sums + network * sums_network + column, summed, column < columns)
