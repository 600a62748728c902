from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data.calibration import calibrate
from synther.errors import DataError


def test_the_threshold_lies_midway():
    generated = np.array([0.2] * 80 + [0.6] * 20)
    assert calibrate(0.2, generated) == pytest.approx(0.4)


@pytest.mark.parametrize(("rate", "rows"), [(0.0, 5000), (1.0, 5000), (0.009, 1000), (0.991, 1000), (0.5, 19)])
def test_a_rate_the_sample_cannot_resolve_gives_one_half(rate: float, rows: int):
    assert calibrate(rate, np.linspace(0.1, 0.3, rows)) == 0.5


def test_ten_on_the_rarer_side_are_enough():
    assert calibrate(0.01, np.linspace(0.1, 0.3, 1000)) == pytest.approx(0.298, abs=1e-3)


@pytest.mark.parametrize(("place", "expected"), [(-3.0, 0.05), (4.0, 0.95)])
def test_the_threshold_stays_off_the_ends(place: float, expected: float):
    assert calibrate(0.5, np.linspace(place, place + 0.1, 100)) == expected


@pytest.mark.parametrize("low", [0.5, np.nextafter(0.5, 1)])
def test_neighbouring_floats_are_told_apart(low: float):
    high = np.nextafter(low, 1)
    generated = np.array([low] * 50 + [high] * 50)
    assert np.count_nonzero(generated > calibrate(0.5, generated)) == 50


@settings(deadline=None)
@given(
    generated=hnp.arrays(np.float64, st.integers(20, 200), elements=st.floats(0.06, 0.94), unique=True),
    rate=st.floats(0.0, 1.0),
)
def test_the_count_above_is_exact_wherever_it_can_be(generated: np.ndarray, rate: float):
    threshold = calibrate(rate, generated)
    if min(rate, 1 - rate) * len(generated) < 10:
        assert threshold == 0.5
    else:
        assert np.count_nonzero(generated > threshold) == round(rate * len(generated))


@pytest.mark.parametrize(
    ("rate", "generated", "text"),
    [
        (0.5, np.zeros(0), "shape"),
        (0.5, np.zeros((3, 1)), "shape"),
        (0.5, np.array([0.0, np.nan]), "not finite"),
        (2.0, np.zeros(3), "got 2"),
    ],
)
def test_columns_that_cannot_be_calibrated(rate: float, generated: np.ndarray, text: str):
    with pytest.raises(DataError, match=text):
        calibrate(rate, generated)
