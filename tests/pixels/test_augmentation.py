"""Random shifts: how far, and that observations are moved so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.pixels.store import PAD, FrameStore, shift_offsets

from .pictures import CPU, noise, stacks


def test_offsets_are_uniform_and_independent(generator):
    count = 90_000
    down, right = shift_offsets(torch.rand(count, 2, generator=generator) * 2 - 1).unbind(1)
    seen = torch.bincount(9 * down + right, minlength=81).double()
    assert len(seen) == 81
    expected = count / 81
    # Chi-square with 80 degrees of freedom: mean 80, deviation sqrt(160).
    assert ((seen - expected).square() / expected).sum() == pytest.approx(80, abs=5 * 160**0.5)


def test_the_ends_of_the_range():
    ends = torch.tensor([-1.0, -1 + 2 / 9 - 1e-6, -1 + 2 / 9 + 1e-6, 0.0, np.nextafter(np.float32(1), np.float32(0))])
    assert shift_offsets(ends).tolist() == [0, 0, 1, 4, 8]


def test_observations_are_padded_and_cut():
    frames = noise(channels=3)
    store = FrameStore(frames, 1, 0.99, CPU)
    wanted = np.pad(stacks(frames)[:3], [(0, 0), (0, 0), (PAD, PAD), (PAD, PAD)], "edge")
    cuts = torch.tensor([[0, 8], [3, 1], [8, 5]])
    got = store.observations(torch.arange(3), cuts, torch.float32)
    for stack, (down, right), found in zip(wanted, cuts.tolist(), got, strict=True):
        cut = stack[:, down : down + 15, right : right + 15]
        np.testing.assert_allclose(found, cut / 255 - 0.5, atol=1e-6)
