"""Gather, shift, stack and scale image frames in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None


def frame_stacks(images: Tensor, records: Tensor, offsets: Tensor | None, pad: int, dtype: torch.dtype) -> Tensor:
    """Return stacks of frames (..., K C, H, W), with pixels scaled to x / 255 - 1/2.

    `images` (N, H, W, C) are uint8. `records` (..., K) are the numbers of the K frames of each stack. All frames of a
    stack are shifted by the same amount: the border pixels are repeated `pad` times on each side, and H x W pixels are
    cut out at `offsets` (..., 2), down and right, from 0 to 2 pad. Without offsets, frames are not shifted. In memory,
    channels come last, which is the fastest layout for convolutions on a GPU.
    """
    if offsets is None:
        offsets = records.new_full((*records.shape[:-1], 2), pad)
    lead, (height, width, channels) = records.shape[:-1], images.shape[1:]
    records, offsets = records.reshape(-1, records.shape[-1]), offsets.reshape(-1, 2)
    if triton is not None and images.is_cuda:
        found = _frame_stacks_triton(images, records, offsets, pad, dtype)
    else:
        down, right = (
            (torch.arange(size, device=images.device) + offset.unsqueeze(1) - pad).clamp_(0, size - 1)
            for size, offset in zip((height, width), offsets.unbind(1), strict=True)
        )
        picked = images[records[:, None, None], down[:, :, None, None], right[:, None, :, None]]  # (M, H, W, K, C)
        found = picked.flatten(3).to(torch.float32).div_(255).sub_(0.5).to(dtype)
    return found.view(*lead, height, width, records.shape[1] * channels).movedim(-1, -3)


def _frame_stacks_triton(images: Tensor, records: Tensor, offsets: Tensor, pad: int, dtype: torch.dtype) -> Tensor:
    _, height, width, channels = images.shape
    count, deep = records.shape
    out = torch.empty(count, height, width, deep * channels, dtype=dtype, device=images.device)
    block = triton.next_power_of_2(width * deep * channels)
    _frame_stacks_kernel[(count * height,)](
        images, records.contiguous(), offsets.contiguous(), out, height, width, channels, deep, pad, block
    )
    return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _frame_stacks_kernel(  # type: ignore[no-untyped-def]
        images, records, offsets, out,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, DEEP: tl.constexpr, PAD: tl.constexpr,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Compute one row of pixels of one stack."""
        line = tl.program_id(0)
        stack, row = line // HEIGHT, line % HEIGHT
        at = tl.arange(0, BLOCK)
        inside = at < WIDTH * DEEP * CHANNELS
        column, deep, channel = at // (DEEP * CHANNELS), at // CHANNELS % DEEP, at % CHANNELS
        record = tl.load(records + stack * DEEP + deep, inside, other=0).to(tl.int64)
        down = row + tl.load(offsets + stack * 2).to(tl.int32) - PAD
        right = column + tl.load(offsets + stack * 2 + 1).to(tl.int32) - PAD
        down = tl.minimum(tl.maximum(down, 0), HEIGHT - 1)
        right = tl.minimum(tl.maximum(right, 0), WIDTH - 1)
        value = tl.load(images + ((record * HEIGHT + down) * WIDTH + right) * CHANNELS + channel, inside, other=0)
        scaled = value.to(tl.float32) / 255.0 - 0.5
        tl.store(out + line.to(tl.int64) * (WIDTH * DEEP * CHANNELS) + at, scaled.to(out.dtype.element_ty), inside)
