"""Bias, layer norm and ReLU of a hidden layer, for many networks at once.

The forward pass and the backward pass go over memory once each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther.kernels.products import column_sums

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

EPS = 1e-5
"""The constant added to the variance, as in `nn.LayerNorm`."""
_WIDEST = 4096  # maximum number of columns that fit into the registers of one program
_ROWS = 16  # rows per program of the backward pass; each program stores one partial sum per column


def norm_relu(x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *, norm_first: bool) -> tuple[Tensor, Tensor]:
    """Return relu(norm(x + bias)) with `norm_first`, else norm(relu(x + bias)), and the statistics of the norm.

    x (N, B, C) must be contiguous; bias, scale and shift are (N, C). The norm is over the columns of each row:
    norm(y) = (y - mean) / sqrt(variance + EPS) * scale + shift. The statistics (2, N, B), which `norm_relu_backward`
    needs, are mean and 1 / sqrt(variance + EPS) of each row.
    """
    if _runs_on_triton(x):
        return _norm_relu_triton(x, bias, scale, shift, norm_first)
    y = x + bias.unsqueeze(1)
    if not norm_first:
        y.relu_()
    normal, mean, factor = torch.native_layer_norm(y, y.shape[-1:], None, None, EPS)
    y = normal.mul_(scale.unsqueeze(1)).add_(shift.unsqueeze(1))
    if norm_first:
        y.relu_()
    return y, torch.stack([mean, factor]).squeeze(-1)


def norm_relu_backward(
    towards: Tensor,
    x: Tensor,
    statistics: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    norm_first: bool,
    sums: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the gradient with respect to x + bias (N, B, C).

    `towards` is the gradient with respect to the result of `norm_relu`. It is overwritten with the returned gradient.
    `sums`, two tensors (N, C), receive the gradients with respect to scale and shift. x and `towards` must be
    contiguous.
    """
    if _runs_on_triton(x):
        return _norm_relu_backward_triton(towards, x, statistics, bias, scale, shift, norm_first, sums)
    mean, factor = statistics.unsqueeze(-1)
    scale, shift = scale.unsqueeze(1), shift.unsqueeze(1)
    y = x + bias.unsqueeze(1)
    normal = y.sub_(mean) if norm_first else y.relu() - mean
    normal.mul_(factor)
    if norm_first:
        towards *= torch.addcmul(shift, normal, scale) > 0
    if sums is not None:
        torch.sum(towards * normal, 1, out=sums[0])
        torch.sum(towards, 1, out=sums[1])
    towards *= scale
    across, along = towards.mean(-1, keepdim=True), (towards * normal).mean(-1, keepdim=True)
    towards.sub_(across).sub_(normal.mul_(along)).mul_(factor)
    return towards if norm_first else towards.mul_(y > 0)


def _runs_on_triton(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype == torch.float32 and x.shape[-1] <= _WIDEST


def _norm_relu_triton(x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, norm_first: bool) -> tuple[Tensor, Tensor]:
    networks, rows, columns = x.shape
    out, statistics = torch.empty_like(x), x.new_empty(2, networks, rows)
    tile = _tile(columns)
    _forward_kernel[(triton.cdiv(rows, tile["ROWS"]), networks)](
        x, out, statistics, bias, scale, shift, rows, columns, bias.stride(0), scale.stride(0), shift.stride(0),
        norm_first, EPS, **tile,
    )  # fmt: skip
    return out, statistics


def _norm_relu_backward_triton(
    towards: Tensor,
    x: Tensor,
    statistics: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    norm_first: bool,
    sums: tuple[Tensor, Tensor] | None,
) -> Tensor:
    networks, rows, columns = x.shape
    blocks = triton.cdiv(rows, _ROWS)
    # The kernel needs a tensor for `partial`. Without sums, `towards` is a placeholder.
    partial = towards if sums is None else x.new_empty(2, networks, blocks, columns)
    _backward_kernel[(blocks, networks)](
        towards, x, statistics, partial, bias, scale, shift, rows, columns,
        bias.stride(0), scale.stride(0), shift.stride(0), norm_first, sums is not None, _ROWS, **_tile(columns),
    )  # fmt: skip
    if sums is not None:
        for part, place in zip(partial, sums, strict=True):
            column_sums(part, place)
    return towards


def _tile(columns: int) -> dict[str, int]:
    """Return the sizes of a tile: whole rows, as many as give 2,048 numbers, but 1 to 16."""
    wide = max(16, triton.next_power_of_2(columns))
    return {"ROWS": min(_ROWS, max(1, 2048 // wide)), "COLUMNS": wide, "num_warps": 4 if wide <= 2048 else 8}


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _forward_kernel(  # type: ignore[no-untyped-def]
        x, out, statistics, bias, scale, shift, rows, columns, bias_network, scale_network, shift_network,
        NORM_FIRST: tl.constexpr, EPSILON: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        network, networks = tl.program_id(1).to(tl.int64), tl.num_programs(1)
        row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        in_row, in_column = row < rows, column < columns
        inside = in_row[:, None] & in_column[None, :]
        line = network * rows + row
        place = line[:, None] * columns + column[None, :]
        # Loads outside of the matrix give 0, so sums over the whole tile are sums over the elements inside.
        y = tl.load(x + place, inside, 0.0) + tl.load(bias + network * bias_network + column, in_column, 0.0)[None, :]
        if not NORM_FIRST:
            y = tl.maximum(y, 0.0)
        mean = tl.sum(y, 1) / columns
        centred = tl.where(inside, y - mean[:, None], 0.0)
        factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / columns + EPSILON)
        y = centred * factor[:, None] * tl.load(scale + network * scale_network + column, in_column, 0.0)[None, :]
        y += tl.load(shift + network * shift_network + column, in_column, 0.0)[None, :]
        if NORM_FIRST:
            y = tl.maximum(y, 0.0)
        tl.store(out + place, y, inside)
        tl.store(statistics + line, mean, in_row)
        tl.store(statistics + networks * rows + line, factor, in_row)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _backward_kernel(  # type: ignore[no-untyped-def]
        towards, x, statistics, partial, bias, scale, shift, rows, columns,
        bias_network, scale_network, shift_network,
        NORM_FIRST: tl.constexpr, SUMS: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        network, networks = tl.program_id(1).to(tl.int64), tl.num_programs(1)
        column = tl.arange(0, COLUMNS)
        in_column = column < columns
        added = tl.load(bias + network * bias_network + column, in_column, 0.0)[None, :]
        scales = tl.load(scale + network * scale_network + column, in_column, 0.0)[None, :]
        shifts = tl.load(shift + network * shift_network + column, in_column, 0.0)[None, :]
        in_scale = tl.zeros((COLUMNS,), dtype=tl.float32)
        in_shift = tl.zeros((COLUMNS,), dtype=tl.float32)
        for start in range(0, EACH, ROWS):
            row = tl.program_id(0) * EACH + start + tl.arange(0, ROWS)
            in_row = row < rows
            inside = in_row[:, None] & in_column[None, :]
            line = network * rows + row
            place = line[:, None] * columns + column[None, :]
            mean = tl.load(statistics + line, in_row, 0.0)[:, None]
            factor = tl.load(statistics + networks * rows + line, in_row, 0.0)[:, None]
            y = tl.load(x + place, inside, 0.0) + added
            delta = tl.load(towards + place, inside, 0.0)
            if NORM_FIRST:
                normal = tl.where(inside, (y - mean) * factor, 0.0)
                delta = tl.where(normal * scales + shifts > 0, delta, 0.0)
            else:
                normal = tl.where(inside, (tl.maximum(y, 0.0) - mean) * factor, 0.0)
            if SUMS:
                in_scale += tl.sum(delta * normal, 0)
                in_shift += tl.sum(delta, 0)
            delta *= scales
            across = (tl.sum(delta, 1) / columns)[:, None]
            along = (tl.sum(delta * normal, 1) / columns)[:, None]
            delta = (delta - across - normal * along) * factor
            if not NORM_FIRST:
                delta = tl.where(y > 0, delta, 0.0)
            tl.store(towards + place, delta, inside)
        if SUMS:
            blocks = tl.num_programs(0)
            at = (network * blocks + tl.program_id(0)) * columns + column
            tl.store(partial + at, in_scale, in_column)
            tl.store(partial + networks.to(tl.int64) * blocks * columns + at, in_shift, in_column)
