from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther.assess.columns import BINS, bin_edges, describe, shares
from synther.assess.fidelity import column_names
from synther.data.transitions import Transitions


def test_whole_numbers_have_a_bin_each() -> None:
    real, synthetic = np.array([0, 1, 1, 3]), np.array([1, 4])
    edges = bin_edges(real, synthetic)
    assert edges.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert shares(real, edges) == (0.25, 0.5, 0, 0.25, 0)
    assert len(bin_edges(np.arange(60), np.arange(60))) == 61
    assert len(bin_edges(np.arange(5_000), np.arange(5_000))) == BINS + 1


def test_stray_values_do_not_squeeze_the_rest_and_are_counted() -> None:
    values = np.append(np.random.default_rng(0).normal(size=9_999), 1e9)
    edges = bin_edges(values, values[:100])
    assert -5 < edges[0] < edges[-1] < 5
    assert sum(shares(values, edges)) == pytest.approx(1)


def test_a_column_of_one_value_and_of_nearly_one() -> None:
    same = np.full(5, 0.3)
    assert (np.diff(bin_edges(same, same)) > 0).all()
    nearly = np.append(np.zeros(10_000), [2.5])
    assert bin_edges(nearly, nearly)[[0, -1]].tolist() == [0, 2.5]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_any_values_have_bins_that_hold_them_all(values: list[float]) -> None:
    column = np.array(values)
    edges = bin_edges(column, column[:1])
    assert np.isfinite(edges).all()
    assert (np.diff(edges) >= 0).all()
    assert sum(shares(column, edges)) == pytest.approx(1)


def test_describe() -> None:
    rng = np.random.default_rng(0)
    observation = rng.normal(3, 2, (400, 2)).astype(np.float32)
    real = Transitions(observation, rng.integers(0, 3, 400), np.full(400, 0.1, np.float32), observation)
    synthetic = Transitions(observation + 100, rng.integers(0, 4, 400), np.zeros(400, np.float32), observation)
    width = len(column_names(real))
    columns = describe(real, synthetic, [0.5] * width, [0.9] * width)
    first, action, reward = columns[0], columns[2], columns[3]
    assert [column.name for column in columns] == column_names(real)
    assert (first.similarity, first.similarity_real, first.outside) == (0.5, 0.9, 1)
    assert first.real_mean == pytest.approx(observation[:, 0].mean(dtype=float))
    assert first.synthetic_mean - first.real_mean == pytest.approx(100, rel=1e-5)
    assert first.real_std == pytest.approx(observation[:, 0].std(dtype=float))
    assert (action.name, len(action.edges)) == ("action", 5)
    assert action.outside == pytest.approx(action.synthetic_shares[3])
    assert (reward.real_std, reward.outside) == (0, 1)
