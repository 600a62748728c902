"""Odds of generated flags brought to the real ones, by taking some rows twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.data.calibration import odds_ratio, rebalanced


def flags(ones: int, rows: int) -> np.ndarray:
    return np.arange(rows) < ones


class TestOddsRatio:
    @pytest.mark.parametrize(
        ("rate", "ones", "rows", "expected"),
        [(0.05, 20, 400, 1.0), (0.1, 50, 1000, (100 / 900) / (50 / 950)), (0.01, 20, 1000, (10 / 990) / (20 / 980))],
        ids=["equal rates", "a tenth", "ten are enough"],
    )
    def test_it_is_the_ratio_of_the_odds(self, rate, ones, rows, expected):
        for decided in (flags(ones, rows), flags(ones, rows).astype(float)):
            assert odds_ratio(rate, decided) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        ("rate", "decided", "expected"),
        [(0.4, 10, 4.0), (0.01, 400, 0.05), (0.99, 10, 4.0), (0.99, 600, 20.0), (0.1, 990, 0.25)],
    )
    def test_it_raises_the_rarer_side_4_times_and_lowers_it_20_times_at_most(self, rate, decided, expected):
        assert odds_ratio(rate, flags(decided, 1000)) == expected

    @pytest.mark.parametrize(
        ("rate", "decided"),
        [(0.009, 100), (0.1, 9), (0.991, 100), (0.1, 991), (0.0, 100), (0.1, 0), (1.0, 100)],
    )
    def test_too_few_to_know_is_one(self, rate, decided):
        assert odds_ratio(rate, flags(decided, 1000)) == 1.0


def test_odds_of_one_change_nothing():
    draw = np.random.default_rng(0)
    before = draw.bit_generator.state
    np.testing.assert_array_equal(rebalanced(flags(3, 10), 1.0, draw), np.arange(10))
    assert draw.bit_generator.state == before


@pytest.mark.parametrize("ones", [0, 10])
@pytest.mark.parametrize("odds", [0.25, 4.0])
def test_a_block_of_one_side_alone_is_left_as_it_is(ones, odds):
    np.testing.assert_array_equal(rebalanced(flags(ones, 10), odds, np.random.default_rng(0)), np.arange(10))


def test_the_same_generator_takes_the_same_rows():
    taken = [rebalanced(flags(30, 512), 2.0, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(taken[0], taken[1])
    assert not np.array_equal(taken[0], taken[2])


@pytest.mark.parametrize(
    ("ones", "odds"), [(26, 1.7), (26, 0.4), (3, 1.1), (480, 3.0), (1, 4.0), (1, 0.25), (511, 0.25)]
)
def test_the_share_is_right_in_expectation(ones, odds):
    given_flags = flags(ones, 512)
    draw = np.random.default_rng(0)
    repeats = 2000
    counts = np.array([given_flags[rebalanced(given_flags, odds, draw)].sum() for _ in range(repeats)])
    wanted = 512 * ones * odds / (ones * odds + 512 - ones)
    assert set(counts) <= {int(np.floor(wanted)), int(np.floor(wanted)) + 1}
    share = wanted % 1
    assert counts.mean() == pytest.approx(wanted, abs=4 * np.sqrt(share * (1 - share) / repeats) + 1e-9)


@pytest.mark.parametrize("odds", [0.5, 2.0])
def test_only_the_share_changes(odds):
    """Within each side every row has the same chance, however the sides came out."""
    given_flags = flags(64, 256)
    draw = np.random.default_rng(0)
    repeats = 3000
    taken = np.array([rebalanced(given_flags, odds, draw) for _ in range(repeats)])
    times = np.bincount(taken.ravel(), minlength=256) / repeats
    for side in (given_flags, ~given_flags):
        mean = times[side].mean()
        assert times[side] == pytest.approx(np.full(side.sum(), mean), abs=5 * np.sqrt(mean / repeats))


@settings(deadline=None)
@given(
    given_flags=st.lists(st.booleans(), min_size=1, max_size=60).map(lambda values: np.array(values, bool)),
    odds=st.floats(0.25, 4.0),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_flags(given_flags, odds, seed):
    taken = rebalanced(given_flags, odds, np.random.default_rng(seed))
    assert taken.shape == given_flags.shape
    kept = taken == np.arange(len(taken))
    before, after = given_flags.sum(), given_flags[taken].sum()
    assert after == before if odds == 1.0 else (after >= before if odds > 1.0 else after <= before)
    # A row that was replaced belonged to the side that gets fewer, and what came is of the other.
    assert (given_flags[~kept] == (odds < 1.0)).all()
    assert (given_flags[taken[~kept]] == (odds > 1.0)).all()
