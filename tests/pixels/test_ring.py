"""Frames that come in one by one, against a plain list of all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from synther.errors import ConfigError, DataError
from synther.pixels.frames import Frames
from synther.pixels.ring import FrameRing
from synther.pixels.store import PAD, FrameStore
from synther.pixels.vector_env import Records

from .pictures import CPU

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
