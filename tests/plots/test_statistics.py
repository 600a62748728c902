"""Scores of several seeds and tasks put together: by hand, by rliable, by counting pairs, by a closed form."""

from __future__ import annotations

import logging
import sys
from itertools import product

import numpy as np
import pytest

from synther.errors import ConfigError, DataError, MissingExtra
from synther.plots.statistics import Interval, aggregate, improvement, paired, plot, plot_improvement

HAND = np.array([[0.0, 50, 120], [20, 70, 160]])
"""Two seeds, three tasks, with the means 10, 60 and 140."""


def normal(seed: int, seeds: int = 8, tasks: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(rng.uniform(0, 100, tasks), 10, (seeds, tasks))


def test_by_hand():
    found = aggregate({"a": HAND}, samples=20)["a"]
    assert found.mean.value == pytest.approx(70)
    assert found.median.value == pytest.approx(60)
    assert found.iqm.value == pytest.approx((20 + 50 + 70 + 120) / 4)  # a quarter of six runs is one at either end
    assert found.optimality_gap.value == pytest.approx(1 - (0 + 0.5 + 1 + 0.2 + 0.7 + 1) / 6)
    expert = aggregate({"expert": np.full((3, 2), 130.0)}, samples=5)["expert"]
    assert expert.optimality_gap == Interval(0, 0, 0)


def test_figures_are_those_of_rliable_and_the_seed_decides_their_intervals():
    from rliable import metrics

    scores = normal(0)
    found = aggregate({"a": scores, "b": normal(7, seeds=3, tasks=1)}, samples=50)
    theirs = [metrics.aggregate_mean(scores), metrics.aggregate_median(scores), metrics.aggregate_iqm(scores)]
    assert [found["a"].mean.value, found["a"].median.value, found["a"].iqm.value] == theirs
    assert found["a"].optimality_gap.value == metrics.aggregate_optimality_gap(scores / 100)
    assert found["a"] == aggregate({"a": scores}, samples=50)["a"] != aggregate({"a": scores}, samples=50, seed=1)["a"]
    assert found["b"].mean == found["b"].median  # of one task
    assert found["b"].mean.low < found["b"].mean.value < found["b"].mean.high


def brute(one, other) -> float:
    """Count all pairs of runs, task by task, a tie as half."""
    shares = []
    for first, second in zip(np.transpose(one), np.transpose(other), strict=True):
        shares.append(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(first, second)]))
    return float(np.mean(shares))


@pytest.mark.parametrize("rounded", [False, True])
def test_improvement_counts_pairs(rounded):
    from rliable.metrics import probability_of_improvement

    one, other = normal(1, seeds=6), normal(2, seeds=9)
    if rounded:  # to tens, so that many tie
        one, other = one.round(-1), other.round(-1)
    found = improvement(one, other, samples=20).value
    assert found == pytest.approx(brute(one, other))
    assert found == pytest.approx(probability_of_improvement(one, other))
    assert improvement(one, other, samples=20) == improvement(one, other, samples=20)
    assert improvement(one, other, samples=20) != improvement(one, other, samples=20, seed=1)
    assert improvement(other, one, samples=20).value == pytest.approx(1 - found)


def test_improvement_at_its_ends():
    scores = normal(3)
    spread = scores.max() - scores.min()
    assert improvement(scores + 2 * spread, scores, samples=20) == Interval(1, 1, 1)
    assert improvement(scores, scores + 2 * spread, samples=20) == Interval(0, 0, 0)
    assert improvement(scores, scores, samples=20).value == 0.5


@pytest.mark.parametrize(("confidence", "stds"), [(0.95, 1.960), (0.5, 0.6745)])
def test_the_interval_of_the_mean_is_as_wide_as_its_closed_form(confidence, stds):
    # Drawn anew within its task a run has that task's variance; how far tasks lie apart adds nothing.
    scores = normal(4, tasks=12) + 1_000 * np.arange(12)
    error = np.sqrt(scores.var(axis=0).sum() / len(scores)) / scores.shape[1]
    found = aggregate({"a": scores}, samples=1_500, confidence=confidence)["a"].mean
    # Three times the standard error of the distance between two quantiles of 1,500 draws.
    assert found.high - found.low == pytest.approx(2 * stds * error, rel=0.15)
    assert found.low < found.value < found.high


def test_the_seeds_of_a_task_are_drawn_apart_from_those_of_the_others():
    # A seed that wins in all 16 tasks is not drawn for all of them at once: their mean varies a quarter as much.
    wins = np.repeat([[-1.0], [1.0]], 20, axis=0)
    found = [improvement(np.tile(wins, tasks), np.zeros((2, tasks)), samples=400) for tasks in (1, 16)]
    alone, together = (interval.high - interval.low for interval in found)
    assert together == pytest.approx(alone / 4, rel=0.25)


def test_one_seed_has_no_width_and_is_said_to(caplog):
    with caplog.at_level(logging.WARNING):
        found = aggregate({"a": HAND[:1]}, samples=20)["a"]
    assert "only one seed" in caplog.text
    for interval in (found.mean, found.median, found.iqm, found.optimality_gap):
        assert interval.low == interval.value == interval.high
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = improvement(HAND[:1], HAND, samples=20)
    assert "only one seed" in caplog.text
    assert found.low < found.high
    caplog.clear()
    aggregate({"a": HAND}, samples=5)
    assert not caplog.text


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([[1.0, np.nan], [2, 3]], "a: 1 of 4"),
        ([[np.inf, 1.0]], "a: 1 of 2"),
        ([1.0, 2.0], r"\(2,\)"),
        (np.zeros((0, 3)), r"\(0, 3\)"),
        ([[1.0, 2.0], [3.0]], "a: "),
        ([["good"]], "a: "),
    ],
)
def test_what_are_no_scores(scores, words):
    with pytest.raises(DataError, match=words):
        aggregate({"a": scores})


def test_what_cannot_be_compared_or_drawn():
    with pytest.raises(DataError, match="same tasks, got 3 and 2"):
        improvement(HAND, HAND[:, :2])
    with pytest.raises(DataError, match="other: 1 of 6 scores"):
        improvement(HAND, np.where(HAND == 50, np.nan, HAND))
    with pytest.raises(ConfigError, match="samples must be at least 1, got 0"):
        aggregate({"a": HAND}, samples=0)
    with pytest.raises(ConfigError, match="confidence"):
        improvement(HAND, HAND, confidence=95)


def test_without_rliable(monkeypatch):
    monkeypatch.setitem(sys.modules, "rliable", None)
    with pytest.raises(MissingExtra, match=r"rliable.*synther\[stats\]"):
        aggregate({"a": HAND})


def test_nothing_to_draw(tmp_path):
    for draw in (plot, plot_improvement):
        with pytest.raises(DataError, match="nothing to draw"):
            draw({}, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pairs", [2, 6, 9, 12, 40])
def test_the_interval_of_a_paired_difference_is_students(pairs):
    scipy = pytest.importorskip("scipy.stats")
    drawn = np.random.default_rng(pairs).normal(1.0, 2.0, pairs)
    found = paired([drawn])
    low, high = scipy.ttest_1samp(drawn, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([found.value, found.low, found.high], [drawn.mean(), low, high], rtol=1e-3)


def test_a_paired_difference_needs_two_pairs():
    for wrong in ([], [[1.0]], [[1.0, 2.0], [3.0]]):
        with pytest.raises(DataError, match="two pairs"):
            paired(wrong)
