"""Batches of decisions, against frames taken one by one, and the random shifts of their frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.pixels.store import PAD, FrameStore, shift_offsets

from .pictures import CPU, noise, stacks

FRAMES = noise(channels=3)  # three episodes of seven records


def batch_of(store: FrameStore, *picked: int, offsets: int = 4):
    return store.batch(torch.tensor([picked]), torch.full((1, len(picked), offsets), PAD), torch.float32)


def picture(*records: int) -> np.ndarray:
    return np.concatenate([FRAMES.image[record] for record in records]) / 255 - 0.5


def test_a_row_by_hand():
    """Three decisions at a time leave four of six in each episode: row 5 is the second of the second, record 8."""
    store = FrameStore(FRAMES, 3, 0.9, CPU)
    assert len(store) == 12
    assert (store.images.dtype, store.frame) == (torch.uint8, (9, 15, 15))
    batch = batch_of(store, 5, 0)
    np.testing.assert_allclose(batch.observation[0, 0], picture(7, 7, 8), atol=1e-6)
    np.testing.assert_allclose(batch.next_observation[0, 0], picture(9, 10, 11), atol=1e-6)
    np.testing.assert_allclose(batch.observation[0, 1], picture(0, 0, 0), atol=1e-6)
    np.testing.assert_allclose(batch.next_observation[0, 1], picture(1, 2, 3), atol=1e-6)
    np.testing.assert_allclose(batch.action[0, 0], FRAMES.action[9], atol=1e-6)
    reward = FRAMES.reward[9] + 0.9 * FRAMES.reward[10] + 0.81 * FRAMES.reward[11]
    np.testing.assert_allclose(batch.reward[0, 0], reward, rtol=1e-6)
    assert batch.terminal[0].tolist() == pytest.approx([0, 0], abs=1e-6)
    assert batch_of(store, 5, offsets=2).next_observation.numel() == 0, "who does not look ahead gets no frames for it"
    low, high = np.array([-3.0, 0.0], np.float32), np.array([-1.0, 10.0], np.float32)
    moved = replace(FRAMES, action=low + (high - low) * (FRAMES.action + 1) / 2, low=low, high=high)
    torch.testing.assert_close(FrameStore(moved, 3, 0.9, CPU).action, store.action)


def test_only_the_terminal_ends_the_future():
    store = FrameStore(FRAMES, 3, 0.9, CPU)
    torch.testing.assert_close(store.terminal, (torch.arange(12) == 11).float(), rtol=0, atol=1e-6)
    shortened = FRAMES.discount.copy()
    shortened[3] = 0.5  # a future of half the worth
    assert FrameStore(replace(FRAMES, discount=shortened), 3, 0.9, CPU).terminal[0].item() == pytest.approx(0.5)


def test_frames_that_are_mapped_are_read(tmp_path):
    """Of a single channel they need not be moved, and PyTorch warns of what it may not write to."""
    grey = noise(channels=1)
    np.save(tmp_path / "image.npy", grey.image)
    mapped = replace(grey, image=np.load(tmp_path / "image.npy", mmap_mode="r"))
    assert torch.equal(FrameStore(mapped, 3, 0.9, CPU).images, FrameStore(grey, 3, 0.9, CPU).images)


def test_members_see_their_own_shifts():
    store = FrameStore(FRAMES, 3, 0.9, CPU)
    cuts = torch.randint(0, 9, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    picked = torch.tensor([[0, 5, 7], [2, 2, 9]])
    together = store.batch(picked, cuts, torch.float32)
    for member in range(2):
        alone = store.batch(picked[member : member + 1], cuts[member : member + 1], torch.float32)
        for part, own in zip(together[:5], alone[:5], strict=True):
            assert torch.equal(part[member], own[0])
    assert torch.equal(together.observation, store.observations(picked, cuts[..., :2], torch.float32))
    assert torch.equal(together.next_observation, store.next_observations(picked, cuts[..., 2:], torch.float32))


def test_offsets_are_uniform_and_independent(generator):
    count = 90_000
    down, right = shift_offsets(torch.rand(count, 2, generator=generator) * 2 - 1).unbind(1)
    seen = torch.bincount(9 * down + right, minlength=81).double()
    assert len(seen) == 81
    expected = count / 81
    # Chi-square with 80 degrees of freedom: mean 80, deviation sqrt(160).
    assert ((seen - expected).square() / expected).sum() == pytest.approx(80, abs=5 * 160**0.5)
    ends = torch.tensor([-1.0, -1 + 2 / 9 - 1e-6, -1 + 2 / 9 + 1e-6, 0.0, np.nextafter(np.float32(1), np.float32(0))])
    assert shift_offsets(ends).tolist() == [0, 0, 1, 4, 8]


def test_observations_are_padded_and_cut():
    wanted = np.pad(stacks(FRAMES)[:3], [(0, 0), (0, 0), (PAD, PAD), (PAD, PAD)], "edge")
    cuts = torch.tensor([[0, 8], [3, 1], [8, 5]])
    got = FrameStore(FRAMES, 1, 0.99, CPU).observations(torch.arange(3), cuts, torch.float32)
    for stack, (down, right), found in zip(wanted, cuts.tolist(), got, strict=True):
        cut = stack[:, down : down + 15, right : right + 15]
        np.testing.assert_allclose(found, cut / 255 - 0.5, atol=1e-6)
