"""Where episodes were cut, among rows of which the oldest have been overwritten."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.data.transitions import ROW_FIELDS, Transitions
from synther.replay.columns import Columns
from synther.replay.store import Store

from .rows import numbered, some


def store_of(capacity: int, count: int) -> Store:
    """The newest of `count` rows of one long episode."""
    fields = {**numbered(0, count), "terminal": np.zeros(count, bool), "timeout": np.zeros(count, bool)}
    store = Store(Columns.of(some(1)), capacity, 1, torch.device("cpu"))
    store.add(Transitions(**fields))
    return store


@pytest.mark.parametrize(("row", "place"), [(5, 0), (8, 3), (11, 6), (4, None)], ids=["oldest", "", "newest", "gone"])
def test_a_cut_is_marked_where_the_row_still_is(row, place):
    store = store_of(7, 12)
    store.cut(row)
    assert np.flatnonzero(store.transitions().timeout).tolist() == ([] if place is None else [place])


def test_a_terminal_row_is_not_cut():
    store = store_of(7, 12)
    store.real.matrix[8 % 7, store.columns.places["terminal"]] = 1
    store.cut(8)
    assert not store.transitions().timeout.any()


def test_where_environments_meet_one_was_cut_even_if_the_next_seems_to_go_on():
    store = Store(Columns.of(some(1)), 10, 1, torch.device("cpu"))
    for step in range(1, 4):
        turn = [numbered(first + step, 1) for first in (0, 3)]
        fields = {name: np.concatenate([one[name] for one in turn]) for name in ROW_FIELDS}
        store.add(Transitions(**fields, timeout=np.zeros(2, bool)))
    found = store.transitions(2)
    assert (found.reward - 0.25).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.flatnonzero(found.timeout).tolist() == [2]


@pytest.mark.parametrize("capacity", [6, 7])
def test_rows_of_environments_that_took_turns_come_one_after_the_other(capacity):
    """Also where what is left begins in the middle of a turn."""
    environments = [numbered(first, 5) for first in (0, 100)]
    store = Store(Columns.of(some(1)), capacity, 1, torch.device("cpu"))
    for step in range(5):
        fields = {name: np.stack([one[name][step] for one in environments]) for name in ROW_FIELDS}
        store.add(Transitions(**fields, timeout=np.zeros(2, bool)))
    left = [0, 100, 1, 101, 2, 102, 3, 103, 4, 104][-capacity:]
    found = store.transitions(2)
    assert (found.reward - 0.25).tolist() == sorted(left)
    assert np.flatnonzero(found.timeout).tolist() == [2]  # where the first one ends, and the second begins
