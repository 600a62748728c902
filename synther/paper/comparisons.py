"""Columns of a table over all tasks that they share: which is better, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.paper.experiment import Cell, Contrast, Experiment
from synther.paper.findings import Finding
from synther.plots.statistics import Aggregate, Interval, aggregate, improvement

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Of two columns over the tasks that are finished in both."""

    one: str
    other: str
    tasks: int
    seeds: int
    improvement: Interval
    """Probability that a run of the one scores higher than a run of the other."""
    iqm_of_one: Interval
    iqm_of_other: Interval
    departed: bool = False
    """Whether a run among them was another than the experiment asks for."""
    without: tuple[str, ...] = ()
    """Tasks in which all seeds of one of the two diverged."""

    def __str__(self) -> str:
        lost = f" Without {', '.join(self.without)}, where all seeds of one diverged." if self.without else ""
        return (
            f"{self.one} over {self.other}, {_size(self.tasks, self.seeds, self.departed)}: probability of improvement "
            f"{_interval(self.improvement, 2)}, interquartile mean {_interval(self.iqm_of_one, 1)} against "
            f"{_interval(self.iqm_of_other, 1)}.{lost}"
        )


def _size(tasks: int, seeds: int, departed: bool) -> str:
    return f"{tasks} tasks, {seeds} seeds{'*' * departed}"


def _interval(found: Interval, digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def comparison(contrast: Contrast, experiment: Experiment, found: Mapping[str, Finding]) -> Comparison | None:
    """None where fewer than two tasks are finished, or one seed is all there is: it says nothing about others."""
    shared = _together((contrast.one, contrast.other), experiment, found)
    (one, other), (seeds, tasks) = shared.scores, shared.scores[0].shape
    if min(seeds, tasks) < 2:
        return None
    iqm = {name: figures.iqm for name, figures in aggregate({"one": one, "other": other}).items()}
    figures = improvement(one, other), iqm["one"], iqm["other"]
    return Comparison(contrast.one, contrast.other, tasks, seeds, *figures, shared.departed, shared.without)


@dataclass(frozen=True)
class Summary:
    """All columns over the tasks that are finished in each of them."""

    tasks: int
    seeds: int
    columns: dict[str, Aggregate]
    departed: bool = False
    """Whether a run among them was another than the experiment asks for."""

    def __str__(self) -> str:
        told = [
            f"{column} {_interval(found.iqm, 1)} (mean {_interval(found.mean, 1)}, median {_interval(found.median, 1)})"
            for column, found in self.columns.items()
        ]
        return f"Interquartile mean of the score, {_size(self.tasks, self.seeds, self.departed)}: {'; '.join(told)}."


def summary(experiment: Experiment, found: Mapping[str, Finding]) -> Summary | None:
    """None where `comparison` is, too. A column of which nothing is finished yet is left out."""
    rows = experiment.table.values()
    begun = [name for name in experiment.columns if any(_scores(row[name], found) for row in rows if name in row)]
    shared = _together(begun, experiment, found)
    scores = dict(zip(begun, shared.scores, strict=True))
    seeds, tasks = next(iter(scores.values())).shape if scores else (0, 0)
    return Summary(tasks, seeds, aggregate(scores), shared.departed) if min(seeds, tasks) >= 2 else None


class _Shared(NamedTuple):
    """What columns have in common."""

    scores: list[Array]
    """Of each column (seeds, tasks), of the tasks that all have finished and the seeds that each has."""
    departed: bool
    without: tuple[str, ...]


def _together(columns: Sequence[str], experiment: Experiment, found: Mapping[str, Finding]) -> _Shared:
    done, departed, without = [], False, []
    for name, row in experiment.table.items():
        cells = [cell for column in columns if (cell := row.get(column)) is not None and _known(cell, found)]
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


def _scores(cell: Cell, found: Mapping[str, Finding]) -> Sequence[float]:
    """Of the seeds that have one."""
    return [score for score in _known(cell, found) if score is not None]


def _known(cell: Cell, found: Mapping[str, Finding]) -> Sequence[float | None]:
    """Of a cell that is finished, and whose task has scores: a number a seed, None where it has diverged."""
    return found[cell.run].scores.get(cell.arm, ()) if cell.run in found else ()
