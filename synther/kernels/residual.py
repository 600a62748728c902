"""A residual block in one kernel, which reads its input once instead of four times."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

_TILE = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 64}


def residual_block(x: Tensor, weight: Tensor, bias: Tensor, *, skip: bool = True, rectify: bool = False) -> Tensor:
    """Return x + relu(x) W^T + b for x (N, W).

    Without `skip`, x is not added. With `rectify`, ReLU is applied to the result.
    """
    if _block_runs_on_triton(x):
        return _residual_block_triton(x, weight, bias, skip, rectify)
    y = torch.addmm(bias, functional.relu(x), weight.t())
    y = y.add_(x) if skip else y
    return y.relu_() if rectify else y


def _block_runs_on_triton(x: Tensor) -> bool:
    rows, width = x.shape
    fits = rows % _TILE["ROWS"] == 0 and width % _TILE["COLUMNS"] == 0
    return triton is not None and x.is_cuda and x.dtype == torch.bfloat16 and fits and _holds_a_tile(x.device)


def _holds_a_tile(device: torch.device) -> bool:
    """Return whether the device has the 192 KiB of shared memory that the tiles need.

    The data-centre GPUs of generations Hopper (9) and Blackwell (10) have it.
    """
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def _residual_block_triton(x: Tensor, weight: Tensor, bias: Tensor, skip: bool, rectify: bool) -> Tensor:
    rows, width = x.shape
    out = torch.empty_like(x)
    grid = (rows // _TILE["ROWS"] * (width // _TILE["COLUMNS"]),)
    _residual_block_kernel[grid](x, weight, bias, out, width, skip, rectify, **_TILE, num_warps=8, num_stages=4)
    return out


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
