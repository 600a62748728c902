"""Rows that grow, and batches of them: what is there after any wrap-around, and exact shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.replay_buffer import BatchSampler, SeedReplayBuffer
from synther.errors import DataError

from .steps import HIGH, LOW, WIDE, WIDTH, A, experience
from .tables import CPU


def replay_buffer(capacity: int = 5, samples: int = 4, members: int = 2) -> SeedReplayBuffer:
    return SeedReplayBuffer(members, WIDE, LOW, HIGH, capacity=capacity, samples=samples, device=CPU)


@pytest.mark.parametrize("capacity", [1, 5, 8])
@pytest.mark.parametrize("sizes", [[1] * 13, [3, 5, 2, 3], [13], [4, 9]], ids=str)
def test_the_newest_rows_are_there_after_any_wrap(capacity, sizes):
    rows, given = replay_buffer(capacity), experience(13, 0, 2)
    at = 0
    for size in sizes:
        rows.add(given[:, at : at + size])
        at += size
    assert (rows.added.tolist(), len(rows), rows.filled.flatten().tolist()) == ([13, 13], capacity, [capacity] * 2)
    for step in range(13 - capacity, 13):
        place = rows.matrix[:, step % capacity].numpy()
        expected = given[:, step].copy()
        expected[:, WIDE : WIDE + A] = (expected[:, WIDE : WIDE + A] - LOW) / (HIGH - LOW) * 2 - 1
        np.testing.assert_allclose(place, expected, atol=1e-6)


@pytest.mark.parametrize("capacity", [1, 5, 8])
def test_members_may_have_different_numbers_of_rows(capacity, generator):
    rows, given = replay_buffer(capacity, samples=0), experience(13, 0, 2)
    for start, end, other in ((0, 4, 0), (4, 5, 2), (5, 13, 3)):
        rows.add_each([given[0, start:end], given[1, :0] if start == 0 else given[1, other - 1 : other]])
    assert (rows.added.tolist(), len(rows)) == ([13, 2], min(capacity, 2))
    alone = [replay_buffer(capacity, samples=0, members=1) for _ in range(2)]
    alone[0].add(given[:1])
    alone[1].add(given[1:, 1:3])
    for member, own in enumerate(alone):
        assert torch.equal(rows.matrix[member], own.matrix[0])
    drawn = BatchSampler(rows, 50, 0.0).fill(torch.randint(1 << 62, (2, 1, 50), generator=generator))
    for member, own in enumerate(alone):
        kept = own.matrix[0, : len(own)]
        assert all((kept == row).all(1).any() for row in drawn[member, 0])


def test_a_batch_names_the_columns():
    given = experience(4, 1, 2)
    batch = replay_buffer().batch(torch.from_numpy(given))
    names = {"observation": slice(0, 3), "action": slice(3, 5), "reward": 5, "terminal": 6, "pair": slice(0, 5)}
    for name, place in {**names, "next_observation": slice(7, None)}.items():
        np.testing.assert_array_equal(getattr(batch, name), given[..., place])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (np.zeros((3, 1, WIDTH), np.float32), r"expected rows of shape \(2, 1, 10\), got \(3, 1, 10\)"),
        (np.zeros((2, WIDTH), np.float32), "expected rows of shape"),
        (np.full((2, 1, WIDTH), np.nan, np.float32), "not finite"),
        (np.full((2, 1, WIDTH), 5.0, np.float32), "leaves its bounds"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, says):
    ring = replay_buffer()
    with pytest.raises(DataError, match=says):
        ring.add(rows)
    assert not ring.added.any()
    assert not ring.filled.any()
    with pytest.raises(DataError, match="shape"):
        ring.generate(0, np.zeros((3, WIDTH), np.float32))


def test_synthetic_rows_are_scaled_as_real_ones_and_only_right_ones_are_taken():
    rows, given = replay_buffer(capacity=4), experience(4, 3)
    given.flags.writeable = False
    rows.add(np.stack([given, given]))
    rows.generate(1, given)
    assert torch.equal(rows.matrix[1, 4:], rows.matrix[1, :4])
    assert (rows.generated, rows.matrix[0, 4:].any()) == ([False, True], False)
    before = rows.matrix.clone()
    for value, says in ((np.nan, "not finite"), (np.inf, "not finite"), (-np.inf, "not finite"), (9.0, "leaves")):
        wrong = given.copy()
        wrong[3, WIDE] = value
        with pytest.raises(DataError, match=says):
            rows.generate(1, wrong)
        assert torch.equal(rows.matrix, before)


@pytest.mark.parametrize(("low", "high"), [([0.0], [0.0]), ([-np.inf], [1.0]), ([0.0], [1.0, 2.0])])
def test_actions_need_bounds(low, high):
    with pytest.raises(DataError, match="finite bounds"):
        SeedReplayBuffer(1, WIDE, low, high, capacity=1, samples=0, device=CPU)


@pytest.mark.parametrize(("ratio", "real"), [(0.0, 8), (0.25, 6), (0.5, 4), (0.3, 6), (1.0, 0)])
def test_every_batch_has_its_share_of_synthetic_rows_to_the_row(ratio, real, generator):
    rows = replay_buffer(capacity=6, samples=9)
    rows.add(experience(4, 0, 2))
    rows.matrix[:, : rows.capacity, 0], rows.matrix[:, rows.capacity :, 0] = 0, 1
    places = BatchSampler(rows, 8, ratio)
    random = torch.randint(1 << 62, (2, 5, 8), generator=generator)
    assert places.fill(random).shape == (2, 5, 8, WIDTH)
    assert not places.fill(random)[..., 0].any()  # nobody has any yet
    rows.generate(1, experience(9, 1))
    rows.matrix[1, rows.capacity :, 0] = 1
    places.settle()
    drawn = places.fill(random)[..., 0]
    assert not drawn[0].any()
    assert not drawn[1, :, :real].any()
    assert drawn[1, :, real:].all()


def test_every_row_that_is_there_is_as_likely_and_no_other(generator):
    rows = replay_buffer(capacity=10, samples=3, members=1)
    places = BatchSampler(rows, 6, 0.5)
    rows.generate(0, experience(3, 1))
    places.settle()
    for filled in (4, 7, 10):
        rows.add(experience(filled - len(rows), 0, 1))
        rows.matrix[0, :, 0] = torch.arange(13)
        drawn = places.fill(torch.randint(1 << 62, (1, 2_000, 6), generator=generator))[0, :, :, 0]
        for part, expected in ((drawn[:, :3], range(filled)), (drawn[:, 3:], range(10, 13))):
            found, counts = part.unique(return_counts=True)
            assert found.tolist() == list(expected)
            even = 6_000 / len(expected)
            assert (counts - even).abs().max() < 5 * even**0.5
