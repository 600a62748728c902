"""Rows as lines of a matrix, in a ring, where their episodes were cut, and mixed with synthetic ones."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.data.spaces import Box, Discrete
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.replay.columns import Columns
from synther.replay.mixture import Mixture
from synther.replay.ring import Ring

from .rows import numbered, some

CPU = torch.device("cpu")


def changed(**fields) -> Transitions:
    return Transitions(**{**numbered(0, 5), **fields})


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2), torch.float32),
        (np.array([0, 3, 1, 2, 2**24]), torch.int64),
        (np.array([[0, 3], [1, 2], [1, 1], [0, 0], [4, 4]]), torch.int64),
    ],
    ids=["real", "discrete", "several discrete"],
)
def test_there_and_back(action, kind):
    rows = changed(action=action, timeout=np.arange(5) == 4)
    columns = Columns.of(rows)
    matrix = columns.pack(rows)
    assert matrix.shape == (5, columns.width)
    assert columns.transitions(matrix, rows.timeout).equals(rows)
    marks = torch.tensor([True, False, True, False, False])
    batch = columns.batch(torch.from_numpy(matrix), marks)
    assert batch.action.dtype == kind
    for name in ("observation", "action", "reward", "next_observation", "terminal"):
        assert np.array_equal(getattr(batch, name).numpy(), getattr(rows, name)), name
    assert batch.synthetic is marks
    assert Columns.from_json(columns.to_json()) == columns


def test_spaces_decide_over_types():
    whole = np.array([0, 1, 1, 0, 1])
    for space, shape in (((Box.uniform(-1, 1, 1),), (5, 1)), ((Discrete(4),), (5,))):
        columns = Columns.of(rows := changed(action=whole, action_space=space))
        matrix = columns.pack(rows)
        assert columns.transitions(matrix).action_space == space
        assert columns.batch(torch.from_numpy(matrix), torch.zeros(5, dtype=torch.bool)).action.shape == shape
        assert Columns.from_json(columns.to_json()) == columns


def test_parts_are_packed_as_the_whole():
    rows = some(50)
    columns = Columns.of(rows)
    assert np.array_equal(columns.pack_parts(rows.chunks(13), 50), columns.pack(rows))
    with pytest.raises(DataError, match="expected 51 rows in all parts together, got 50"):
        columns.pack_parts(rows.chunks(13), 51)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": np.zeros((5, 3))}, "action has 3 columns, earlier rows had 2"),
        ({"observation": np.zeros((5, 2)), "next_observation": np.zeros((5, 2))}, "observation has 2 columns"),
        ({"reward": np.full(5, 1e39)}, "too large for float32"),
        ({"action": np.array([[0.5]] * 5)}, "16,777,216"),
        ({"action": np.array([2**24 + 1] * 5)}, "16,777,216"),
    ],
)
def test_other_rows_are_refused(fields, message):
    columns = Columns.of(some(5, discrete="16" in message))
    with pytest.raises(DataError, match=message):
        columns.pack(changed(**fields))


def lines(first: int, count: int) -> torch.Tensor:
    number = torch.arange(first, first + count, dtype=torch.float32)
    return torch.stack([number, -number], dim=1)


def filled(capacity: int, sizes: list[int]) -> tuple[Ring, list[int]]:
    ring, model = Ring(capacity, 2, CPU), []
    for size in sizes:
        ring.add(lines(len(model), size).numpy())
        model += range(len(model), len(model) + size)
    return ring, model[-capacity:]


@settings(max_examples=40)
@given(st.integers(1, 7), st.lists(st.integers(0, 20), max_size=8))
def test_it_holds_the_newest_rows_in_order_of_age(capacity, sizes):
    ring, model = filled(capacity, sizes)
    assert len(ring) == len(model)
    assert ring.added == sum(sizes)
    assert torch.equal(ring.by_age(), lines(model[0] if model else 0, len(model)))


@settings(max_examples=40)
@given(st.integers(1, 7), st.lists(st.integers(0, 20), max_size=8), st.integers(0, 9))
def test_restored_it_draws_and_forgets_as_before(capacity, sizes, more):
    ring, _ = filled(capacity, sizes)
    other = Ring(capacity, 2, CPU)
    other.restore(ring.by_age(), ring.added)
    for one in (ring, other):
        one.add(lines(1000, more).numpy())
    assert torch.equal(ring.by_age(), other.by_age())
    if len(ring):
        draws = [one.sample(20, torch.Generator().manual_seed(3)) for one in (ring, other)]
        assert torch.equal(*draws)


@pytest.mark.parametrize("added", [5, 8, 11, 16])
def test_every_row_is_as_likely_as_any_other(added):
    ring, model = filled(8, [added])
    drawn = ring.sample(20_000, torch.Generator().manual_seed(0))[:, 0].long()
    counts = torch.bincount(drawn, minlength=added)[model[0] :]
    assert len(counts) == len(model)
    # Five standard deviations of a binomial count.
    expected = 20_000 / len(model)
    assert (counts - expected).abs().max() < 5 * (expected * (1 - 1 / len(model))) ** 0.5


def test_a_copy_is_a_ring_of_its_own_and_rows_come_in_any_mode():
    with torch.inference_mode():
        ring, _ = filled(4, [3])
    assert not ring.matrix.is_inference()  # or nobody could add to it any more, on a GPU
    ring.by_age().zero_()
    other = copy.deepcopy(ring)
    other.add(lines(10, 2).numpy())
    assert torch.equal(ring.by_age(), lines(0, 3))
    assert other.by_age()[:, 0].tolist() == [1, 2, 10, 11]
    rows = Ring(1_000, 100, CPU)
    assert len(pickle.dumps(rows)) < 1.1 * 1_000 * 100 * 4  # and has every row once


def test_refusals():
    with pytest.raises(ConfigError, match="capacity"):
        Ring(0, 2, CPU)
    ring = Ring(4, 2, CPU)
    with pytest.raises(DataError, match="no rows"):
        ring.sample(1, torch.Generator())
    with pytest.raises(DataError, match=r"\(3, 1\)"):
        ring.add(np.zeros((3, 1)))
    with pytest.raises(DataError, match="4 rows"):
        ring.restore(lines(0, 3), 9)


def ring_of(value: float, rows: int = 10) -> Ring:
    ring = Ring(10, 1, CPU)
    ring.add(np.full((rows, 1), value))
    return ring


@settings(max_examples=40)
@given(st.floats(0, 1), st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_no_batch_is_a_row_off_and_nothing_adds_up(ratio, batches):
    mixture, total, synthetic = Mixture(ratio), 0, 0
    for batch in batches:
        real, some = mixture.split(batch)
        assert real + some == batch
        assert math.floor(Fraction(ratio) * batch) <= some <= math.ceil(Fraction(ratio) * batch)
        total, synthetic = total + batch, synthetic + some
        assert abs(synthetic - Fraction(ratio) * total) <= Fraction(1, 2)


def test_known_counts():
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="ratio"):
            Mixture(wrong)
    halves = Mixture(0.5)
    assert [halves.split(256)[1] for _ in range(3)] == [128, 128, 128]
    odd = Mixture(0.5)
    assert [odd.split(5)[1] for _ in range(4)] == [3, 2, 3, 2]
    rare = Mixture(0.01)
    assert sum(rare.split(10)[1] for _ in range(1000)) == 100


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.25, 3), (1.0, 12)])
@pytest.mark.parametrize("shuffled", [True, False])
def test_marks_and_rows_agree(ratio, expected, shuffled):
    rows, marks = Mixture(ratio, shuffled=shuffled).draw(ring_of(0), ring_of(1), 12, torch.Generator().manual_seed(0))
    assert torch.equal(rows[:, 0], marks.float())
    assert int(marks.sum()) == expected
    in_blocks = marks.tolist() == [False] * (12 - expected) + [True] * expected
    assert in_blocks == (not shuffled or ratio != 0.25)


def test_without_synthetic_rows_all_are_real_and_nothing_is_owed():
    mixture = Mixture(0.5)
    for synthetic in (None, Ring(10, 1, CPU)):
        rows, marks = mixture.draw(ring_of(0), synthetic, 11, torch.Generator())
        assert not rows.any()
        assert not marks.any()
    assert mixture.split(10) == (5, 5)
