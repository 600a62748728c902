"""Rows to one line of a matrix and back, for every kind of action."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.data.spaces import Box, Discrete
from synther.errors import DataError
from synther.replay.columns import Columns

from .rows import numbered, some


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
