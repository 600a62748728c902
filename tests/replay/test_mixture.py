"""Exact numbers of real and synthetic rows."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.errors import ConfigError
from synther.replay.mixture import Mixture
from synther.replay.ring import Ring

CPU = torch.device("cpu")


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
