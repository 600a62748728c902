"""Aggregate the scores of several seeds on several tasks (Agarwal et al. 2021), with the package rliable.

Scores are normalised as in D4RL: 0 is a random policy, 100 is an expert. Arrays of scores are (seeds, tasks).
Intervals are percentiles of a stratified bootstrap, which resamples the seeds of each task, but not the tasks.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.errors import ConfigError, DataError, MissingExtra
from synther.plots.curves import INK, SCORE, blank, footnote, heading, plain, tidy, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Scores = NDArray[np.float64]

_BAR, _MARK = "#8fc1e3", "#00406b"
_KEY = "line: the estimate; bar: its bootstrap interval over the seeds"


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval over the seeds. With one seed, the interval has no width."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Aggregate:
    """Statistics of a method's scores on all tasks."""

    mean: Interval
    """Mean over all runs, in points of score."""
    median: Interval
    """Median over the tasks of each task's mean, in points of score."""
    iqm: Interval
    """Interquartile mean, in points of score: the mean without the lowest and the highest quarter of the runs."""
    optimality_gap: Interval
    """Mean of max(0, 1 - score / 100): the distance to an expert's score. Lower is better, 0 is best."""


def aggregate(
    scores: Mapping[str, ArrayLike], *, samples: int = 2_000, seed: int = 0, confidence: float = 0.95
) -> dict[str, Aggregate]:
    """Compute mean, median, interquartile mean and optimality gap of each method, with bootstrap intervals. `scores`
    has an array (seeds, tasks) for each method. Methods may have different numbers of seeds. The intervals of a method
    do not depend on the other methods."""
    found = {name: _checked(name, values) for name, values in scores.items()}
    return {name: Aggregate(*_intervals(_figures, (runs,), samples, seed, confidence)) for name, runs in found.items()}


def _figures(runs: Scores) -> Scores:
    """Return the statistics of `Aggregate` for scores (seeds, tasks). The results equal those of rliable's functions.
    These, and NumPy's mean and median, are several times slower."""
    seeds, count = runs.shape
    least, most = runs.size // 4, runs.size - runs.size // 4
    middle = np.partition(runs.ravel(), (least, most - 1))[least:most]
    tasks, gap = runs.sum(axis=0) / seeds, 1 - np.minimum(runs / 100, 1).sum() / runs.size
    ordered = np.sort(tasks)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return np.array([tasks.sum() / count, median, middle.sum() / middle.size, gap])


def improvement(
    one: ArrayLike, other: ArrayLike, *, samples: int = 2_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Compute the probability that a run of `one` scores higher than a run of `other` on the same task, averaged over
    the tasks. 0.5 means no difference, and a tie counts half. Both arrays are (seeds, tasks) and must have the same
    tasks in the same order."""
    first, second = _checked("one", one), _checked("other", other)
    if first.shape[1] != second.shape[1]:
        raise DataError(f"`one` and `other` must have the same tasks, got {first.shape[1]} and {second.shape[1]} tasks")
    return _intervals(_wins, (first, second), samples, seed, confidence)[0]


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t distribution with 1 to 9 degrees of freedom."""


def paired(differences: Sequence[ArrayLike]) -> Interval:
    """Compute the mean over the tasks of each task's mean difference, with a 95 % interval by Student's t. The array of
    a task has a difference for each pair of runs, and needs at least two. The degrees of freedom are those of Welch's
    test, rounded down."""
    tasks = [_checked("differences", np.reshape(np.asarray(task, np.float64), (-1, 1)))[:, 0] for task in differences]
    if not tasks or min(map(len, tasks)) < 2:
        raise DataError("an interval needs at least one task, and at least two pairs of runs on each task")
    value = float(np.mean([task.mean() for task in tasks]))
    parts = np.array([task.var(ddof=1) / len(task) for task in tasks]) / len(tasks) ** 2
    if not parts.any():
        return Interval(value, value, value)
    freedom = parts.sum() ** 2 / sum(part**2 / (len(task) - 1) for part, task in zip(parts, tasks, strict=True))
    whole, z = int(freedom + 1e-9), 1.959964
    if whole <= len(_T95):
        quantile = _T95[whole - 1]
    else:  # expansion of Abramowitz and Stegun, 26.7.5
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        quantile = z + first / whole + second / whole**2 + third / whole**3
    reach = quantile * math.sqrt(parts.sum())
    return Interval(value, value - reach, value + reach)


def _wins(one: Scores, other: Scores) -> Scores:
    """Return the mean probability of improvement. The result equals that of rliable's function, which also tests each
    task for significance and is 100 times slower."""
    return np.array([0.5 + 0.5 * np.sign(one[:, None] - other[None, :]).mean()])


def _intervals(
    figures: Callable[..., Scores], runs: tuple[Scores, ...], samples: int, seed: int, confidence: float
) -> list[Interval]:
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples}")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must be between 0 and 1, got {confidence}")
    if any(len(part) == 1 for part in runs):
        log.warning("only one seed: the interval does not include the variation between seeds")
    try:
        from rliable import library
    except ImportError as error:
        missing = (error.name or "rliable").partition(".")[0]
        raise MissingExtra(missing, "stats", "aggregating the scores of several tasks") from None
    draw = np.random.default_rng(seed)

    class Seeded(library.StratifiedIndependentBootstrap):  # type: ignore[misc]
        """A bootstrap with a seed. rliable's class always uses NumPy's global random generator."""

        def update_indices(self) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
            return [(draw.integers(len(part), size=part.shape), np.arange(part.shape[1])) for part in runs], {}

    drawn = Seeded(*runs).conf_int(figures, reps=samples, method="percentile", size=confidence)
    low, high = drawn.tolist()
    return [Interval(*found) for found in zip(figures(*runs).tolist(), low, high, strict=True)]


def _checked(name: str, scores: ArrayLike) -> Scores:
    try:
        found = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}: expected one number per seed and task") from None
    if found.ndim != 2 or not found.size:
        raise DataError(f"{name}: scores must be a non-empty array (seeds, tasks), got the shape {found.shape}")
    if not np.isfinite(found).all():
        lost = f"{np.sum(~np.isfinite(found))} of {found.size}"
        raise DataError(f"{name}: {lost} scores are not finite: leave these seeds out")
    return found


def plot(aggregates: Mapping[str, Aggregate], path: str | os.PathLike[str], *, title: str = "", note: str = "") -> None:
    """Plot one panel per statistic and one row per method. A bar shows the interval, a line the estimate."""
    if not aggregates:
        raise DataError("nothing to draw: no method was given")
    panels = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality_gap": "Optimality gap"}
    figure = blank(10.0, 1.6 + 0.36 * len(aggregates))
    heading(figure, title)
    row = figure.subplots(1, len(panels), sharey=True, gridspec_kw={"wspace": 0.06})
    for axes, (field, name) in zip(row, panels.items(), strict=True):
        _rows(axes, [getattr(found, field) for found in aggregates.values()])
        axes.set_title(name, loc="left", fontsize=10.5, color=INK)
        gap = field == "optimality_gap"
        axes.set_xlabel("fraction, lower is better" if gap else SCORE, fontsize=9, color=INK)
    footnote(figure, _KEY, note)
    row[0].set_yticks(range(len(aggregates)), list(map(plain, aggregates)), fontsize=10)
    write(figure, path)


def plot_improvement(
    improvements: Mapping[tuple[str, str], Interval], path: str | os.PathLike[str], *, title: str = "", note: str = ""
) -> None:
    """Plot one row per comparison: the probability that the left method is better than the right one."""
    figure, axes = _compared(list(improvements.values()), [left for left, _ in improvements], 0.5, 6.4, title)
    footnote(figure, _KEY, note)
    axes.set_xlim(-0.02, 1.02)  # so that lines at 0 and 1 are not cut
    axes.set_xlabel("probability that the left is better than the right", fontsize=9.5, color=INK)
    others = axes.twinx()
    others.set_ylim(axes.get_ylim())
    others.set_yticks(range(len(improvements)), [plain(right) for _, right in improvements], fontsize=10)
    others.tick_params(length=0, colors=INK)
    others.spines[:].set_visible(False)
    write(figure, path)


def plot_differences(
    found: Mapping[str, Interval], path: str | os.PathLike[str], *, title: str = "", note: str = ""
) -> None:
    """Plot one row per paired difference of scores."""
    figure, axes = _compared(list(found.values()), list(found), 0.0, 8.0, title)
    footnote(figure, "line: the mean difference; bar: its 95 % interval over the seeds", note)
    axes.set_xlabel("difference of scores, higher is better", fontsize=9.5, color=INK)
    write(figure, path)


def _compared(found: list[Interval], names: list[str], equal: float, width: float, title: str) -> tuple[Figure, Axes]:
    """Draw one row per comparison, and a vertical line at `equal`, where both sides are equal."""
    if not found:
        raise DataError("nothing to draw: no comparison was given")
    figure = blank(width, 1.5 + 0.4 * len(found))
    axes = figure.subplots()
    _rows(axes, found)
    heading(figure, title)
    axes.axvline(equal, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_yticks(range(len(found)), list(map(plain, names)), fontsize=10)
    return figure, axes


def _rows(axes: Axes, found: list[Interval]) -> None:
    tidy(axes)
    axes.use_sticky_edges = False  # leaves a margin: a bar that begins at the edge of its panel looks cut off
    for place, interval in enumerate(found):
        axes.barh(place, interval.high - interval.low, left=interval.low, height=0.56, color=_BAR, linewidth=0)
        axes.vlines(interval.value, place - 0.36, place + 0.36, color=_MARK, linewidth=2.4, zorder=3)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)
