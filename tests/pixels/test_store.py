"""Batches of decisions, from frames that are all there or come in one by one, against plain lists of them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from synther.errors import ConfigError, DataError
from synther.pixels.frames import Frames
from synther.pixels.ring import FrameRing
from synther.pixels.store import PAD, FrameStore, shift_offsets
from synther.pixels.vector_env import Records

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


SIZE = (1, 4, 5)
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)
DISCOUNT = 0.9


def ring(members: int = 1, capacity: int = 11, nstep: int = 3) -> FrameRing:
    return FrameRing(members, SIZE, LOW, HIGH, nstep, DISCOUNT, capacity=capacity, device=CPU)


class Record(NamedTuple):
    image: np.ndarray
    action: np.ndarray
    reward: float
    discount: float
    first: bool


class Story:
    """Records of one member: episodes of random lengths, every other of which ends in a terminal."""

    def __init__(self, seed: int) -> None:
        self.draw, self.left, self.terminal = np.random.default_rng(seed), 0, False
        self.told: list[Record] = []

    def go_on(self) -> Record:
        first, draw = self.left == 0, self.draw
        if first:
            self.left, self.terminal = int(draw.integers(1, 9)), not self.terminal
        else:
            self.left -= 1
        over = not first and self.left == 0
        image = draw.integers(0, 256, SIZE, dtype=np.uint8)
        action = draw.uniform(LOW, HIGH).astype(np.float32)
        self.told.append(Record(image, action, float(draw.normal()), 1.0 - (over and self.terminal), first))
        return self.told[-1]


def joined(records: list[Record]) -> Records:
    image, action, reward, discount, first = zip(*records, strict=True)
    return Records(np.stack(image), np.stack(action), *np.array([reward, discount], np.float32), np.array(first))


def decisions(told: list[Record], capacity: int, nstep: int) -> list[int]:
    """Numbers of the records that can be learned from: all that they need is in one episode, and among the newest."""
    found = []
    for number in range(len(told) - nstep):
        begun = max(at for at in range(number + 1) if told[at].first)
        inside = not any(told[at].first for at in range(number + 1, number + nstep + 1))
        if inside and max(number - 2, begun) >= len(told) - capacity:
            found.append(number)
    return found


def observation(told: list[Record], number: int) -> np.ndarray:
    begun = max(at for at in range(number + 1) if told[at].first)
    return np.concatenate([told[max(number - back, begun)].image for back in (2, 1, 0)]) / 255 - 0.5


def check(made: FrameRing, member: int, told: list[Record], nstep: int) -> None:
    expected = decisions(told, made.capacity, nstep)
    assert made.counts[member] == len(expected)
    if not expected:
        return
    numbers = torch.arange(len(expected)).expand(len(made.added), -1) % torch.from_numpy(made.counts.clip(1))[:, None]
    picked = made.at(numbers)
    batch = made.batch(picked, torch.full((*picked.shape, 4), PAD), torch.float32)
    for place, number in enumerate(expected):
        np.testing.assert_allclose(batch.observation[member, place], observation(told, number), atol=1e-6)
        np.testing.assert_allclose(batch.next_observation[member, place], observation(told, number + nstep), atol=1e-6)
        following = told[number + 1 : number + 1 + nstep]
        reward = sum(DISCOUNT**k * record.reward for k, record in enumerate(following))
        assert batch.reward[member, place].item() == pytest.approx(reward, abs=1e-5)
        assert batch.terminal[member, place].item() == pytest.approx(1 - following[-1].discount, abs=1e-6)
        action = (following[0].action - LOW) / (HIGH - LOW) * 2 - 1
        np.testing.assert_allclose(batch.action[member, place], action, atol=1e-6)


@pytest.mark.parametrize(("capacity", "nstep"), [(11, 3), (6, 3), (4, 1)])
def test_decisions_are_those_of_a_plain_list(capacity, nstep):
    """Members get their records at times of their own; the smallest rings are full within an episode."""
    stories, made = [Story(seed) for seed in range(3)], ring(3, capacity, nstep)
    draw = np.random.default_rng(0)
    for turn in range(90):
        who = np.flatnonzero(draw.random(3) < 0.6)
        if len(who):
            made.add(joined([stories[member].go_on() for member in who]), who)
        for member, story in enumerate(stories if turn % 5 == 0 else []):
            assert made.added[member] == len(story.told)
            check(made, member, story.told, nstep)
    assert (made.gone > 0).all()


def test_what_is_seen_now():
    story, made = Story(3), ring(capacity=7)
    for _ in range(40):
        made.add(joined([story.go_on()]))
        seen = made.images[made.seen()[0]].permute(0, 3, 1, 2).flatten(0, 1)
        np.testing.assert_allclose(seen / 255 - 0.5, observation(story.told, len(story.told) - 1), atol=1e-6)


def test_a_ring_that_is_not_full_is_a_store():
    story, made = Story(5), ring(capacity=60)
    while len(story.told) < 40 or story.left:
        made.add(joined([story.go_on()]))
    told = joined(story.told)
    store = FrameStore(Frames(*told, low=LOW, high=HIGH), 3, DISCOUNT, CPU)
    assert len(made) == len(store)
    every, cuts = torch.arange(len(store)).unsqueeze(0), torch.randint(0, 9, (1, len(store), 4))
    for own, theirs in zip(
        made.batch(made.at(every), cuts, torch.float32), store.batch(every, cuts, torch.float32), strict=True
    ):
        torch.testing.assert_close(own, theirs)


def test_each_decision_is_as_likely_as_any_other():
    stories, made = [Story(0), Story(1)], ring(2, 12)
    for _ in range(50):
        made.add(joined([story.go_on() for story in stories]))
    picked = made.pick(torch.arange(60_000).expand(2, -1))
    for member in range(2):
        places, counts = picked[member].unique(return_counts=True)
        assert len(places) == made.counts[member]
        assert (counts - 60_000 / len(places)).abs().max() <= 1
        assert (places // 12 == member).all()


def test_refusals():
    with pytest.raises(ConfigError, match="at least 6 frames, got 5"):
        ring(capacity=5)
    made, story = ring(), Story(0)
    with pytest.raises(DataError, match="has no records yet"):
        made.seen()
    story.go_on()
    with pytest.raises(DataError, match="is not a reset"):
        made.add(joined([story.go_on()]))
    made.add(joined([story.told[0]]))
    with pytest.raises(DataError, match="nothing to learn from yet: no episode has 3 decisions"):
        made.pick(torch.zeros(1, 2, dtype=torch.int64))
