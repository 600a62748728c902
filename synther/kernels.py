"""Three operations that decide the speed on a GPU, each stated in PyTorch and again as a Triton kernel.

PyTorch's statement is the definition, and what runs on a CPU, in other number types, or where Triton is absent. The
kernels save passes over memory: a residual block reads its input once instead of four times, an optimiser step touches
each weight once, and products of many small networks are biased, rectified, masked and summed where they are made.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None


def residual_block(x: Tensor, weight: Tensor, bias: Tensor, *, skip: bool = True, rectify: bool = False) -> Tensor:
    """x + relu(x) W^T + b for x (N, W), without the `x +` where not `skip`; its relu where `rectify`."""
    if _block_runs_on_triton(x):
        return _residual_block_triton(x, weight, bias, skip, rectify)
    y = torch.addmm(bias, functional.relu(x), weight.t())
    y = y.add_(x) if skip else y
    return y.relu_() if rectify else y


def adam_step(
    weights: Tensor,
    working: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    rate: Tensor,
    *,
    clip: float | None,
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
) -> None:
    """Clip the gradient's norm, take one Adam step (Kingma and Ba 2015, Algorithm 1), refresh the working copy.

    All tensors have one shape and no gaps, and are updated in place. `weights`, `mean` and `square` are float32;
    `gradient` and `working` are in the network's type, and `working` may be `weights` itself. `step` (from 1) and
    `rate` are scalars on the device. A `clip` of None leaves the gradient as it is.
    """
    # Without a limit nobody reads the norm; the step stands in for it.
    norm = step if clip is None else torch.linalg.vector_norm(gradient, dtype=weights.dtype)
    if triton is not None and weights.is_cuda:
        size = weights.numel()
        grid = (triton.cdiv(size, _ADAM_BLOCK),)
        _adam_kernel[grid](
            weights, working, gradient, mean, square, norm, step, rate,
            size, clip or 0.0, beta1, beta2, epsilon, clip is not None, _ADAM_BLOCK,
        )  # fmt: skip
        return
    clipped = gradient.to(weights.dtype)
    if clip is not None:
        clipped = clipped * (clip / (norm + 1e-6)).clamp(max=1.0)
    mean.lerp_(clipped, 1 - beta1)
    square.lerp_(clipped * clipped, 1 - beta2)
    spread = (square / (1 - beta2**step)).sqrt_().add_(epsilon)
    weights.sub_(mean / spread * (rate / (1 - beta1**step)))
    if working.data_ptr() != weights.data_ptr():
        working.copy_(weights)


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
    """a @ b for many networks at once: a (S, R, D), b (N, D, C), where N / S networks in turn share one a. (N, R, C)

    Then `bias` (N, C) is added, the result rectified, and set to 0 where `mask` (N, R, C) is not positive. It is
    written into `out`, or added to what is there. `sums` (N, C) receives b summed over D: where a product is the
    gradient of matrices, that is the gradient of their biases. Views of any strides will do, but for the last axis of
    `bias`, `mask`, `out` and `sums`, which has no gaps.
    """
    if out is None:
        out = b.new_empty(b.shape[0], a.shape[1], b.shape[2])
    if triton is not None and a.is_cuda and a.dtype == torch.float32:
        _product_triton(a, b, bias, rectify, mask, out, add, sums)
        return out
    y = torch.matmul(a.unsqueeze(1), torch.unflatten(b, 0, (len(a), -1))).flatten(0, 1)
    if bias is not None:
        y += bias.unsqueeze(1)
    if rectify:
        y.relu_()
    if mask is not None:
        y *= mask > 0
    if sums is not None:
        sums.copy_(b.sum(1))
    return out.add_(y) if add else out.copy_(y)


_ADAM_BLOCK = 1024
_TILE = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 64}


def _block_runs_on_triton(x: Tensor) -> bool:
    rows, width = x.shape
    fits = rows % _TILE["ROWS"] == 0 and width % _TILE["COLUMNS"] == 0
    return triton is not None and x.is_cuda and x.dtype == torch.bfloat16 and fits and _holds_a_tile(x.device)


def _holds_a_tile(device: torch.device) -> bool:
    """The tiles take 192 KiB of shared memory, which the data-centre chips Hopper (9) and Blackwell (10) have."""
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def _residual_block_triton(x: Tensor, weight: Tensor, bias: Tensor, skip: bool, rectify: bool) -> Tensor:
    rows, width = x.shape
    out = torch.empty_like(x)
    grid = (rows // _TILE["ROWS"] * (width // _TILE["COLUMNS"]),)
    _residual_block_kernel[grid](x, weight, bias, out, width, skip, rectify, **_TILE, num_warps=8, num_stages=4)
    return out


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
    rows, depth, columns, networks = *a.shape[1:], b.shape[2], len(b)
    tile = _product_tile(networks, rows, columns, depth)
    grid = (triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(columns, tile["COLUMNS"]), networks)
    # What is not asked for is never touched; out stands in for it.
    no_bias, no_mask, no_sums = bias is None, mask is None, sums is None
    bias, mask, sums = (out if given is None else given for given in (bias, mask, sums))
    tf32 = torch.get_float32_matmul_precision() != "highest"
    _product_kernel[grid](
        a, b, out, bias, mask, sums, rows, columns, depth, *a.stride(), *b.stride(), *out.stride()[:2],
        bias.stride(0), *mask.stride()[:2], sums.stride(0), networks // len(a),
        not no_bias, rectify, not no_mask, not no_sums, add, "tf32" if tf32 else "ieee", **tile,
    )  # fmt: skip


def _product_tile(networks: int, rows: int, columns: int, depth: int) -> dict[str, int]:
    """Tiles no larger than the product, of at least the 16 that matrix units need."""
    side = 64
    sides = [min(side, max(16, 1 << (size - 1).bit_length())) for size in (rows, columns)]
    deep = 32 if depth > 16 else 16
    return {"ROWS": sides[0], "COLUMNS": sides[1], "DEPTH": deep, "num_warps": 4, "num_stages": 3}


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _residual_block_kernel(  # type: ignore[no-untyped-def]
        x, weight, bias, out,
        WIDTH: tl.constexpr, SKIP: tl.constexpr, RECTIFY: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        tile = tl.program_id(0)
        across = WIDTH // COLUMNS
        rows = (tile // across) * ROWS + tl.arange(0, ROWS)
        columns = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        row_start = rows.to(tl.int64)[:, None] * WIDTH
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for k in range(0, WIDTH, DEPTH):
            left = tl.load(x + row_start + (k + depth)[None, :])
            right = tl.load(weight + columns[None, :] * WIDTH + (k + depth)[:, None])
            total = tl.dot(tl.maximum(left, 0.0).to(tl.bfloat16), right, total)
        total += tl.load(bias + columns)[None, :].to(tl.float32)
        place = row_start + columns[None, :]
        if SKIP:
            total += tl.load(x + place).to(tl.float32)
        if RECTIFY:
            total = tl.maximum(total, 0.0)
        tl.store(out + place, total.to(tl.bfloat16))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _adam_kernel(  # type: ignore[no-untyped-def]
        weights, working, gradient, mean, square, norm, step, rate,
        size, clip, beta1, beta2, epsilon, CLIP: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        count = tl.load(step)
        clipped = tl.load(gradient + at, inside).to(tl.float32)
        if CLIP:
            clipped *= tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0)
        m = tl.load(mean + at, inside)
        m += (clipped - m) * (1 - beta1)
        v = tl.load(square + at, inside)
        v += (clipped * clipped - v) * (1 - beta2)
        spread = tl.sqrt(v / (1 - tl.exp(count * tl.log(beta2)))) + epsilon
        w = tl.load(weights + at, inside)
        w -= m / spread * (tl.load(rate) / (1 - tl.exp(count * tl.log(beta1))))
        tl.store(mean + at, m, inside)
        tl.store(square + at, v, inside)
        tl.store(weights + at, w, inside)
        tl.store(working + at, w.to(working.dtype.element_ty), inside)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _product_kernel(  # type: ignore[no-untyped-def]
        a, b, out, bias, mask, sums, rows, columns, depth,
        a_network, a_row, a_depth, b_network, b_depth, b_column, out_network, out_row,
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
        place = out + network * out_network + row[:, None] * out_row + column[None, :]
        if ADD:
            total += tl.load(place, in_row & in_column, 0.0)
        tl.store(place, total, in_row & in_column)
        if SUMS:  # the same in every tile of these columns: one writes it
            tl.store(sums + network * sums_network + column, summed, (column < columns) & (tile < across))
