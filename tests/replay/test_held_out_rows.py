"""Which rows of a growing buffer no generator learns from."""

from __future__ import annotations

import numpy as np
import pytest

from synther.replay.refit import held_out_rows

STREAM = (7, 5)


@pytest.mark.parametrize("gone", [13, 400, 2_500])
def test_a_row_is_held_out_or_not_however_many_before_it_are_gone(gone):
    every = held_out_rows(STREAM, 0, 4_000, 0.1)
    np.testing.assert_array_equal(held_out_rows(STREAM, gone, 4_000 - gone, 0.1), every[gone:])
    np.testing.assert_array_equal(held_out_rows(STREAM, 0, gone, 0.1), every[:gone])


def test_of_few_rows_some_are_held_out_and_some_are_not():
    few = held_out_rows(STREAM, 0, 40, 0.2)
    assert 0 < few.sum() < 20
    assert not held_out_rows(STREAM, 0, 1, 1.0).any()
    assert held_out_rows(STREAM, 0, 0, 0.1).shape == (0,)
