"""Lines between knots: NumPy's interpolation, however it is found out where a number lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.data import quantiles
from synther.data.quantiles import Curve, _Line

# Even enough for a table; a few far from the rest; two that are neighbours among all floats.
EVEN = np.linspace(-4, 5, 300) ** 3 + np.arange(300)
FAR = np.array([-1e6, -1.0, -0.5, 0.0, 0.25, 1e6])
CLOSE = np.array([0.0, 1.0, np.nextafter(1.0, 2.0), 3.0])
TWO = np.array([-2.0, 0.5])


def expected(x: np.ndarray, at: np.ndarray, to: np.ndarray, below: float, above: float) -> np.ndarray:
    outside = np.where(x < at[0], to[0] + (x - at[0]) * below, to[-1] + (x - at[-1]) * above)
    return np.where((x < at[0]) | (x > at[-1]), outside, np.interp(x, at, to))


def around(at: np.ndarray) -> np.ndarray:
    """All knots, the floats next to them, and numbers between and beyond them."""
    span = at[-1] - at[0]
    spread = np.random.default_rng(0).uniform(at[0] - span, at[-1] + span, 2_000)
    return np.concatenate([at, np.nextafter(at, -np.inf), np.nextafter(at, np.inf), spread])


@pytest.mark.parametrize(
    ("at", "table"), [(EVEN, True), (FAR, False), (CLOSE, False), (TWO, True)], ids=["even", "far", "close", "two"]
)
def test_it_is_straight_between_knots_and_beyond_them(at, table):
    to = np.cumsum(np.random.default_rng(1).exponential(size=len(at)))
    line, x = _Line(at, to, 0.5, 3.0), around(at)
    assert bool(len(line._before)) == table
    np.testing.assert_allclose(line.follow(x), expected(x, at, to, 0.5, 3.0), rtol=1e-14, atol=1e-14 * to[-1])
    np.testing.assert_array_equal(line.follow(at), to)
    every_other = np.stack([x, -x], axis=1)[:, 0]  # as a column of a matrix lies
    np.testing.assert_array_equal(line.follow(every_other), line.follow(x))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=40, unique=True), st.floats(0.1, 1.0))
def test_a_table_finds_what_a_search_finds(knots, gap):
    at = np.cumsum(np.abs(knots) + gap) - 500
    line, x = _Line(at, np.arange(len(at), dtype=float), 1.0, 1.0), around(at)
    assert len(line._before)
    found = line.follow(x)
    line._before = np.empty(0, np.intp)
    np.testing.assert_array_equal(found, line.follow(x))


@pytest.mark.parametrize("at", [EVEN, FAR], ids=["table", "search"])
def test_what_is_no_finite_number_stays_so(at):
    line = _Line(at, np.arange(len(at), dtype=float), 1.0, 1.0)
    np.testing.assert_array_equal(line.follow(np.array([np.inf, -np.inf, np.nan])), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("most", [0, 1 << 16], ids=["search", "table"])
def test_a_curve_leads_back(most, monkeypatch):
    monkeypatch.setattr(quantiles, "_MOST_CELLS", most)
    column = np.random.default_rng(2).standard_t(2, 5_000)
    for curve in (Curve.fit(column, column.min(), column.max()), Curve.fit(column, -99.0, 99.0).halfway()):
        wider = np.concatenate([column, [-200.0, 200.0]])
        np.testing.assert_allclose(curve.backward(curve.forward(wider)), wider, rtol=1e-9, atol=1e-9)
        assert bool(len(curve._to_values._before)) == bool(most)


def test_columns_of_one_length_share_their_scores():
    one, other = (Curve.fit(np.random.default_rng(seed).normal(size=400), -9.0, 9.0) for seed in (0, 1))
    assert one.scores == other.scores
    assert one.scores[0] == pytest.approx(-other.scores[-1])
    assert one.values != other.values
