"""Comparisons of table columns over all tasks, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.paper.experiment import Cell, Contrast, Experiment
from synther.paper.findings import Finding
from synther.plots.statistics import Aggregate, Interval, aggregate, improvement

Found = Mapping[str, Finding]


@dataclass(frozen=True)
class Comparison:
    """Two columns over the tasks that are finished in both."""

    one: str
    other: str
    tasks: int
    seeds: int
    improvement: Interval
    """Probability that a run of `one` scores higher than a run of `other`."""
    iqm_of_one: Interval
    iqm_of_other: Interval
    departed: bool = False
    """Whether one of the runs differs from the experiment's settings."""
    without: tuple[str, ...] = ()
    """Tasks on which all seeds of one column diverged."""

    def __str__(self) -> str:
        lost = f" Excludes {', '.join(self.without)}, where all seeds of one column diverged." if self.without else ""
        return (
            f"{self.one} over {self.other}, {_size(self.tasks, self.seeds, self.departed)}: probability of improvement "
            f"{_interval(self.improvement, 2)}, interquartile mean {_interval(self.iqm_of_one)} against "
            f"{_interval(self.iqm_of_other)}.{lost}"
        )


@dataclass(frozen=True)
class Summary:
    """All columns over the tasks that are finished in all of them."""

    tasks: int
    seeds: int
    columns: dict[str, Aggregate]
    departed: bool = False
    """Whether one of the runs differs from the experiment's settings."""

    def __str__(self) -> str:
        columns = [
            f"{column} {_interval(found.iqm)} (mean {_interval(found.mean)}, median {_interval(found.median)})"
            for column, found in self.columns.items()
        ]
        size = _size(self.tasks, self.seeds, self.departed)
        return f"Interquartile mean of the score, {size}: {'; '.join(columns)}."


def _size(tasks: int, seeds: int, departed: bool) -> str:
    return f"{tasks} tasks, {seeds} seeds{'*' * departed}"


def _interval(found: Interval, digits: int = 1) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def comparison(contrast: Contrast, experiment: Experiment, found: Found) -> Comparison | None:
    """None with fewer than two finished tasks or fewer than two seeds."""
    shared = _shared((contrast.one, contrast.other), experiment, found)
    (one, other), (seeds, tasks) = shared.scores, shared.scores[0].shape
    if min(seeds, tasks) < 2:
        return None
    iqm = {name: figures.iqm for name, figures in aggregate({"one": one, "other": other}).items()}
    figures = improvement(one, other), iqm["one"], iqm["other"]
    return Comparison(contrast.one, contrast.other, tasks, seeds, *figures, shared.departed, shared.without)


def summary(experiment: Experiment, found: Found) -> Summary | None:
    """None where `comparison` is None too. Leaves out columns with no finished run."""
    rows = experiment.table.values()
    begun = [name for name in experiment.columns if any(_scores(row[name], found) for row in rows if name in row)]
    shared = _shared(begun, experiment, found)
    scores = dict(zip(begun, shared.scores, strict=True))
    seeds, tasks = next(iter(scores.values())).shape if scores else (0, 0)
    return Summary(tasks, seeds, aggregate(scores), shared.departed) if min(seeds, tasks) >= 2 else None


class _Shared(NamedTuple):
    scores: list[NDArray[np.float64]]
    """For each column (seeds, tasks): the tasks that all columns have finished, and as many seeds as all have."""
    departed: bool
    without: tuple[str, ...]


def _shared(columns: Sequence[str], experiment: Experiment, found: Found) -> _Shared:
    done, departed, without = [], False, []
    for name, row in experiment.table.items():
        cells = [row[column] for column in columns if column in row and _values(row[column], found)]
        if len(cells) < len(columns):
            continue
        task = [_scores(cell, found) for cell in cells]
        if all(task):
            done.append(task)
            departed |= any(found[cell.run].departed(cell.arm) for cell in cells)
        else:
            without.append(name)
    seeds = min((len(scores) for task in done for scores in task), default=0)
    kept = np.array([[scores[:seeds] for scores in task] for task in done], np.float64)
    scores = list(kept.reshape(len(done), len(columns), seeds).transpose(1, 2, 0))
    return _Shared(scores, departed, tuple(without))


def _scores(cell: Cell, found: Found) -> list[float]:
    return [score for score in _values(cell, found) if score is not None]


def _values(cell: Cell, found: Found) -> Sequence[float | None]:
    """One score per seed, None for a seed that diverged; empty if the run is not finished or has no scores."""
    return found[cell.run].scores.get(cell.arm, ()) if cell.run in found else ()
