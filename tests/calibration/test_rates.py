"""Thresholds that give flags their real rate, and odds of generated flags brought to the real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.calibration.rates import Calibration, believed, calibrate, class_weights, odds_ratio, resampled
from synther.errors import DataError


def test_the_threshold_lies_midway():
    generated = np.array([0.2] * 80 + [0.6] * 20)
    assert calibrate(0.2, generated) == pytest.approx(0.4)


@pytest.mark.parametrize(("place", "expected"), [(-3.0, 0.05), (4.0, 0.95)])
def test_the_threshold_stays_off_the_ends(place: float, expected: float):
    assert calibrate(0.5, np.linspace(place, place + 0.1, 100)) == expected


@pytest.mark.parametrize("low", [0.5, np.nextafter(0.5, 1)])
def test_neighbouring_floats_are_told_apart(low: float):
    high = np.nextafter(low, 1)
    generated = np.array([low] * 50 + [high] * 50)
    assert np.count_nonzero(generated > calibrate(0.5, generated)) == 50


@settings(deadline=None, max_examples=50)
@given(count=st.integers(20, 200), seed=st.integers(0, 2**32), rate=st.floats(0.0, 1.0))
def test_the_count_above_is_exact_unless_too_few_rows_can_resolve_the_rate(count: int, seed: int, rate: float):
    generated = np.random.default_rng(seed).uniform(0.06, 0.94, count)
    threshold = calibrate(rate, generated)
    if min(rate, 1 - rate) * count < 10:
        assert threshold == 0.5
    else:
        assert np.count_nonzero(generated > threshold) == round(rate * count)


@pytest.mark.parametrize(
    ("rate", "generated"),
    [(0.5, np.zeros(0)), (0.5, np.zeros((3, 1))), (0.5, np.array([0.0, np.nan])), (2.0, np.zeros(3))],
    ids=["empty", "matrix", "nan", "rate"],
)
def test_columns_that_cannot_be_calibrated(rate: float, generated: np.ndarray):
    with pytest.raises(DataError):
        calibrate(rate, generated)


def flags(ones: int, rows: int) -> np.ndarray:
    return np.arange(rows) < ones


@pytest.mark.parametrize(
    ("rate", "ones", "expected"),
    [
        (0.1, 50, (100 / 900) / (50 / 950)),
        (0.01, 20, (10 / 990) / (20 / 980)),  # ten real flags are enough
        (0.4, 10, 4.0),  # the rarer side is raised 4 times at most, and lowered 20 times
        (0.01, 400, 0.05),
        (0.99, 10, 4.0),
        (0.99, 600, 20.0),
        (0.1, 990, 0.25),
        *((rate, ones, 1.0) for rate, ones in ((0.009, 100), (0.1, 9), (0.991, 100), (0.1, 991), (0.0, 9), (1.0, 9))),
    ],
)
def test_the_odds_ratio_has_limits_and_is_1_where_too_few_flags_are_known(rate, ones, expected):
    for decided in (flags(ones, 1000), flags(ones, 1000).astype(float)):
        assert odds_ratio(rate, decided) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rate", [0.002, 0.998])
def test_a_rate_is_corrected_by_what_chance_does_not_explain(rate):
    """A generator that is right is left alone. One that is wrong is corrected, up to chance."""
    draw, count = np.random.default_rng(0), 30_000

    def off(times: float) -> np.ndarray:
        """By how much generators with so many times the rarer rate are off after their correction, over chance."""
        own = times * rate if rate < 0.5 else 1 - times * (1 - rate)
        seen = draw.binomial(count, own, 500) / count
        corrected = [odds(own) * odds(believed(rate, one, count)) / odds(one) for one in seen]
        return np.log(np.array(corrected) / odds(rate)) * np.sqrt(0.002 * times * count)

    assert off(1.0).std() == pytest.approx(0.62, rel=0.1)  # of a normal error z above 1, z - 1 / z is left
    for times in (0.4, 3.0):
        found = off(times)
        assert abs(found.mean()) < 0.3
        assert found.std() == pytest.approx(1, rel=0.15)
    assert (believed(0.0, 0.1, count), believed(1.0, 0.1, count)) == (0, 1)
    assert believed(0.01, 0.0, count) == pytest.approx(0.01, rel=0.25)  # none was found
    assert believed(0.01, 0.02, 10**9) == pytest.approx(0.01, rel=1e-4)


def odds(share: float) -> float:
    return share / (1 - share)


def test_values_of_two_groups_come_as_often_as_in_real_rows():
    draw = np.random.default_rng(0)
    first = draw.choice(3, 200_000, p=(0.7, 0.25, 0.05))
    second = (draw.random(200_000) < np.array([0.2, 0.5, 0.8])[first]).astype(np.int64)
    classes, shares = np.column_stack([first, second]), ((0.66, 0.3, 0.04), (0.6, 0.4))
    found = Calibration((), 1.0, class_weights(shares, 10**6, classes))
    taken = classes[resampled(found.row_weights(classes), draw)]
    for column, share in zip(taken.T, shares, strict=True):
        # 200,000 rows: a share of 4 % to 1.1 %.
        assert np.bincount(column) / len(taken) == pytest.approx(share, rel=0.03)
    odds = [_odds(rows) for rows in (classes, taken)]
    assert odds[1] == pytest.approx(odds[0], rel=0.1), "how the groups belong together stays as it is"
    again = Calibration.from_json(found.to_json())
    assert again == found


def _odds(rows: np.ndarray) -> float:
    counts = np.bincount(2 * rows[:, 0] + rows[:, 1], minlength=6).astype(float)
    return float(counts[0] * counts[3] / (counts[1] * counts[2]))


def test_what_chance_explains_and_what_is_hardly_known_is_left_alone():
    draw = np.random.default_rng(1)
    classes = draw.choice(4, (20_000, 1), p=(0.5, 0.3, 0.1999, 0.0001))
    (weights,) = class_weights(((0.5, 0.3, 0.1999, 0.0001),), 20_000, classes)
    assert weights == pytest.approx(np.ones(4), abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_taken_as_often_as_their_weights_say(seed):
    draw = np.random.default_rng(seed)
    weight = draw.uniform(0.5, 2, 5_000)
    times = np.bincount(resampled(weight, draw), minlength=5_000)
    assert times.sum() == 5_000
    assert np.abs(times - weight / weight.mean()).max() < 1 + 1e-9
    np.testing.assert_array_equal(resampled(np.full(7, 2.0), draw), np.arange(7))
