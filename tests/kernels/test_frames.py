"""Observations made of frames, against NumPy's padding, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.kernels.frames import frame_stacks

SHAPES = [(5, 12, 17, 3, 3, 4), (3, 7, 5, 1, 2, 1), (4, 84, 84, 3, 3, 4)]
"""Images, height, width, channels, frames of a stack, pad."""


def drawn(shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count, height, width, channels, deep, pad = shape
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return images, draw.integers(0, count, (2, 6, deep)), draw.integers(0, 2 * pad + 1, (2, 6, 2))


def one_by_one(images: np.ndarray, records: np.ndarray, offsets: np.ndarray, pad: int) -> np.ndarray:
    _, height, width, channels = images.shape
    padded = np.pad(images, [(0, 0), (pad, pad), (pad, pad), (0, 0)], "edge").transpose(0, 3, 1, 2)
    found = np.empty((*records.shape[:-1], records.shape[-1] * channels, height, width))
    for place in np.ndindex(records.shape[:-1]):
        down, right = offsets[place]
        found[place] = np.concatenate(padded[records[place]])[:, down : down + height, right : right + width]
    return found / 255 - 0.5


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_stacks_are_their_definition(shape):
    images, records, offsets = drawn(shape)
    got = frame_stacks(*map(torch.from_numpy, (images, records, offsets)), shape[-1], torch.float32)
    np.testing.assert_allclose(got, one_by_one(images, records, offsets, shape[-1]), atol=1e-6)
    assert got[0].is_contiguous(memory_format=torch.channels_last)
    still = frame_stacks(torch.from_numpy(images), torch.from_numpy(records), None, shape[-1], torch.float32)
    np.testing.assert_allclose(still, one_by_one(images, records, np.zeros_like(offsets), 0), atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "margin"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stacks_on_the_gpu(shape, dtype, margin):
    images, records, offsets = drawn(shape)
    got = frame_stacks(*(torch.from_numpy(part).cuda() for part in (images, records, offsets)), shape[-1], dtype)
    assert got.dtype == dtype
    assert got[0].is_contiguous(memory_format=torch.channels_last)
    expected = one_by_one(images, records, offsets, shape[-1])
    np.testing.assert_allclose(got.float().cpu(), expected, atol=margin)
