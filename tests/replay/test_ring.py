"""The ring against a list that forgets its beginning."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.errors import ConfigError, DataError
from synther.replay.ring import Ring

CPU = torch.device("cpu")


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
    rows = Ring(1_000, 100, torch.device("cpu"))
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
