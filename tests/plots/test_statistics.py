"""Scores of several seeds and tasks put together: by hand, by SciPy, by counting pairs, by a closed form."""

from __future__ import annotations

import logging
import sys
from itertools import product

import numpy as np
import pytest

from synther.errors import ConfigError, DataError, MissingExtra
from synther.plots import statistics
from synther.plots.statistics import Aggregate, Interval, aggregate, improvement, plot, plot_improvement

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


def test_iqm_is_the_trimmed_mean_of_all_runs():
    from scipy.stats import trim_mean

    scores = normal(0)
    assert aggregate({"a": scores}, samples=5)["a"].iqm.value == pytest.approx(trim_mean(scores.ravel(), 0.25))


def test_an_expert_lacks_nothing_and_a_random_policy_everything():
    found = aggregate({"expert": np.full((3, 2), 130.0), "random": np.zeros((3, 2))}, samples=5)
    assert found["expert"].optimality_gap == Interval(0, 0, 0)
    assert found["random"].optimality_gap == Interval(1, 1, 1)


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


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(5)
    pairs = rng.normal(size=(60, 2, 8, 6))
    found = [improvement(one, other, samples=150, confidence=0.8) for one, other in pairs]
    covering = np.mean([interval.low <= 0.5 <= interval.high for interval in found])
    assert 0.65 <= covering <= 0.93


def test_same_input_same_interval():
    scores, others = normal(6), normal(7, seeds=3)
    both = aggregate({"a": scores, "b": others}, samples=50)
    assert both == aggregate({"a": scores, "b": others}, samples=50)
    assert both["b"] == aggregate({"b": others}, samples=50)["b"]
    assert both["a"] != aggregate({"a": scores}, samples=50, seed=1)["a"]
    kept = improvement(scores, others, samples=50)
    assert kept == improvement(scores, others, samples=50)
    assert kept != improvement(scores, others, samples=50, seed=1)


def test_one_task():
    scores = normal(8, tasks=1)
    found = aggregate({"a": scores}, samples=50)["a"]
    assert found.mean == found.median
    assert found.mean.low < found.mean.value < found.mean.high


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


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written."""
    figures = []
    monkeypatch.setattr(statistics, "write", lambda figure, path: figures.append(figure))
    return figures


def made(value: float) -> Aggregate:
    points = Interval(value, value - 3, value + 2)
    return Aggregate(points, points, points, Interval(1 - value / 100, 0.1, 0.9))


def test_a_row_a_method(drawn):
    plot({"original": made(50), "a rather long name": made(60)}, "x.png", title="Twelve tasks")
    figure = drawn[0]
    assert [panel.get_title("left") for panel in figure.axes] == ["Median", "IQM", "Mean", "Optimality gap"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["original", "a rather long name"]
    first, second = figure.axes[1].patches
    assert (first.get_x(), first.get_width()) == (47, 5)
    assert (second.get_x(), second.get_width()) == (57, 5)
    assert figure.axes[1].get_ylim()[0] > figure.axes[1].get_ylim()[1]  # the first method is on top
    lowest, highest = figure.axes[1].get_xlim()
    assert lowest < 47 < 62 < highest
    assert figure.get_suptitle() == "Twelve tasks"


def test_a_row_a_comparison(drawn):
    plot_improvement({("SynthER", "original"): Interval(0.6, 0.5, 0.75), ("a", "b"): Interval(1, 1, 1)}, "x.png")
    left, right = drawn[0].axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["SynthER", "a"]
    assert [label.get_text() for label in right.get_yticklabels()] == ["original", "b"]
    assert left.get_ylim() == right.get_ylim()
    low, high = left.get_xlim()
    assert -0.05 < low < 0 < 1 < high < 1.05  # a line at certainty is whole
    assert left.patches[0].get_width() == pytest.approx(0.25)


def test_nothing_to_draw(tmp_path):
    for draw in (plot, plot_improvement):
        with pytest.raises(DataError, match="nothing to draw"):
            draw({}, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
