"""Read finished runs and compare them: final scores, differences from the experiment's settings, table cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.experiments.results import EvalPoint, MeanStd, Result
from synther.experiments.spec import PROVENANCE, RunSpec
from synther.folder import Difference, differences, read_object
from synther.paper.experiment import STOPPED, Average, Cell, Experiment, Figure
from synther.plots.curves import count
from synther.plots.statistics import Aggregate, Interval, aggregate, improvement, paired
from synther.presets import Settings

Shown = Literal["scores", "returns"]
Values = dict[str, tuple[float | None, ...]]
"""For each arm one number per seed, or None if the seed diverged."""

OLDER = "an older version"
"""Marks a difference that comes from an older version of a preset."""


@dataclass(frozen=True)
class Peak:
    """The evaluation of a run with the highest mean over the seeds."""

    mean: float
    updates: int

    def __str__(self) -> str:
        return f"{Figure(self.mean)} after {count(self.updates)}"


@dataclass(frozen=True)
class Finding:
    """A finished job."""

    values: Values
    """Final scores, or final returns in online experiments."""
    departures: tuple[Difference, ...] = ()
    """Differences between the finished run and the experiment's description of it."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The content of `provenance.json`."""
    result: Result | None = None
    """None for jobs that do not train agents."""
    shown: Shown = "scores"
    sources: dict[str, set[str]] = field(default_factory=dict)
    """For each arm, the sources of its training data."""

    def departed(self, arm: str) -> bool:
        """Return whether a difference affects the arm. A difference in a source affects only arms with this source."""
        arm = arm.removesuffix(STOPPED)
        concerned = {"sources": self.sources.get(arm, set()), "arms": {arm}}
        places = [departure.place for departure in self.departures]
        return any(len(place) < 2 or place[1] in concerned.get(place[0], place) for place in places)

    @property
    def scores(self) -> Values:
        """The final scores. They are used where several tasks are combined."""
        return self.values if self.result is None else _finals(self.result, "scores")

    def curve(self, arm: str) -> tuple[EvalPoint, ...]:
        return () if self.result is None else self.result.curves.get(arm, ())

    def peak(self, arm: str) -> Peak | None:
        """Return the best evaluation of an arm, or None if it was evaluated only once."""
        best = None if len(self.curve(arm)) < 2 or self.result is None else self.result.best(arm)
        spread = None if best is None else MeanStd.of(getattr(best, self.shown) or ())
        return Peak(spread.mean, best.updates) if best and spread else None

    def late(self, arm: str) -> MeanStd | None:
        """Return the mean over the second half of the evaluations, or None if this half has fewer than two."""
        curve = self.curve(arm)
        half = [getattr(point, self.shown) for point in curve[len(curve) // 2 :]]
        if len(half) < 2 or None in half:
            return None
        return MeanStd.of([None if None in one else float(np.mean(one)) for one in zip(*half, strict=True)])


def finished(experiment: Experiment, runs: Path) -> dict[str, Finding]:
    """Return the finished jobs in the folder `runs`, by name."""
    done = (job for job in experiment.jobs if job.result(runs / job.name).exists())
    return {job.name: _finding(job, runs / job.name) for job in done}


def _finding(job: RunSpec, folder: Path) -> Finding:
    wanted, done = job.to_json(), read_object(folder / "run.json")
    for content in (wanted, done):
        content.pop("evaluate_every", None)  # does not change the final evaluation
    every, defaults = list(differences(done, wanted)), Settings().to_json()
    for place, generator, then in job.generators(done, folder):
        # Options that were added after the run had their default. Options that were removed count as a difference.
        completed = {part: {**defaults.get(part, {}), **then.get(part, {})} for part in {**defaults, **then}}
        if any(differences(completed, generator.settings().to_json())):
            every.append(Difference((*place, generator.preset), OLDER, None))
    departures = tuple(sorted(every, key=lambda departure: len(departure.place)))  # most general first
    if not job.is_training:
        numbers = read_object(job.result(folder), dict[str, float])
        return Finding({arm: (value,) for arm, value in numbers.items()}, departures)
    result, provenance = Result.read(job.result(folder)), read_object(folder / PROVENANCE)
    sources = {arm: set(shares) for arm, shares in done.get("arms", {}).items()}
    return Finding(_finals(result, job.shown), departures, provenance, result, job.shown, sources)


def pooled(experiment: Experiment, found: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the finished runs. The runs of a pool are combined to one run, or dropped until all are finished."""
    members = {run for runs in experiment.pools.values() for run in runs}
    shown = {name: run for name, run in found.items() if name not in members}
    for name, names in experiment.pools.items():
        if found.keys() >= {*names}:
            runs = [found[run] for run in names]
            values = {arm: tuple(value for run in runs for value in run.values[arm]) for arm in runs[0].values}
            departures = dict.fromkeys(departure for run in runs for departure in run.departures)
            result = Result.joined([run.result for run in runs if run.result is not None])
            shown[name] = replace(runs[0], values=values, departures=tuple(departures), result=result)
    return shown


def _finals(result: Result, shown: Shown) -> Values:
    """Return the final scores or returns of all arms. Arms have no scores if no reference returns are known."""
    points = {arm: curve[-1] for arm, curve in result.curves.items() if curve}
    stopped = {f"{arm}{STOPPED}": result.stopped(arm) for arm in points}
    points |= {name: point for name, point in stopped.items() if point is not None}
    finals = {arm: getattr(point, shown) for arm, point in points.items()}
    return {arm: values for arm, values in finals.items() if values is not None}


def described(departure: Difference) -> str:
    """Format a difference, for example as `updates 20 instead of 1,000,000`."""
    if departure.found == OLDER:
        return f"{'.'.join(departure.place[:-1])} created with {OLDER} of preset {departure.place[-1]}"
    sides = departure.found, departure.wanted
    found, wanted = (f"{side:,}" if isinstance(side, int) else "none" if side is None else str(side) for side in sides)
    return f"{departure.where} {found} instead of {wanted}"


@dataclass(frozen=True)
class Entry:
    """The content of a table cell. It has no numbers if its run is not finished or all seeds diverged."""

    paper: Figure | None = None
    mean: float | None = None
    std: float | None = None
    """None for a single seed, and for jobs that do not train agents."""
    seeds: int = 0
    """Number of seeds that did not diverge."""
    diverged: int = 0
    departed: bool = False
    """Whether the run differs from the experiment's settings, for example in its number of updates."""
    peak: Peak | None = None
    late: MeanStd | None = None
    """Mean and std over the second half of the evaluations."""

    def __str__(self) -> str:
        nothing = "diverged" if self.diverged else "-"
        own = nothing if self.mean is None else str(Figure(self.mean, self.std)) + "*" * self.departed
        return own if self.paper is None else f"{own} ({self.paper})"


def entry(cell: Cell, found: Mapping[str, Finding]) -> Entry:
    finding = found.get(cell.run)
    values = None if finding is None else finding.values.get(cell.arm)
    if finding is None or values is None:
        return Entry(cell.paper)
    departed, spread = finding.departed(cell.arm), MeanStd.of(values)
    if spread is None:
        return Entry(cell.paper, diverged=len(values), departed=departed)
    std = None if finding.result is None or spread.seeds == 1 else spread.std
    lost = len(values) - spread.seeds
    more = finding.peak(cell.arm), finding.late(cell.arm)
    return Entry(cell.paper, spread.mean, std, spread.seeds, lost, departed, *more)


def average(wanted: Average, column: str, entries: Mapping[str, Mapping[str, Entry]]) -> Entry:
    """Return the mean over all rows that have the column. It is empty until all of them are finished."""
    cells = [entries[row][column] for row in wanted.rows if column in entries[row]]
    paper = wanted.paper.get(column)
    means = [cell.mean for cell in cells if cell.mean is not None]
    if not cells or len(means) < len(cells):
        return Entry(paper)
    departed, lost = any(cell.departed for cell in cells), sum(cell.diverged for cell in cells)
    stds = [cell.std for cell in cells if cell.std is not None]
    std = float(np.mean(stds)) if len(stds) == len(cells) else None
    return Entry(paper, float(np.mean(means)), std, min(cell.seeds for cell in cells), lost, departed)


@dataclass(frozen=True)
class Comparison:
    """A comparison of two columns, over all tasks that are finished in both."""

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
    """Excluded tasks, on which all seeds of one column diverged."""

    def __str__(self) -> str:
        lost = f" Excludes {', '.join(self.without)}, where all seeds of one column diverged." if self.without else ""
        return (
            f"{self.one} over {self.other}, {_size(self.tasks, self.seeds, self.departed)}: probability of improvement "
            f"{_interval(self.improvement, 2)}, interquartile mean {_interval(self.iqm_of_one)} against "
            f"{_interval(self.iqm_of_other)}.{lost}"
        )


@dataclass(frozen=True)
class Summary:
    """Aggregated scores of all columns, over the tasks that are finished in all columns."""

    tasks: int
    seeds: int
    columns: dict[str, Aggregate]
    departed: bool = False

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


def comparison(columns: tuple[str, str], experiment: Experiment, found: Mapping[str, Finding]) -> Comparison | None:
    """Compare two columns. Return None if there are fewer than two finished tasks or fewer than two seeds."""
    shared = _shared(columns, experiment, found)
    (one, other), (seeds, tasks) = shared.scores, shared.scores[0].shape
    if min(seeds, tasks) < 2:
        return None
    iqm = {name: figures.iqm for name, figures in aggregate({"one": one, "other": other}).items()}
    figures = improvement(one, other), iqm["one"], iqm["other"]
    return Comparison(*columns, tasks, seeds, *figures, shared.departed, shared.without)


@dataclass(frozen=True)
class Paired:
    """A comparison of two columns seed by seed. The same seed has the same agent of stage one in both columns."""

    row: str
    """Name of the row, or "all data sets": the mean over all rows with both columns."""
    one: str
    other: str
    primary: bool
    seeds: int
    """Number of pairs of runs."""
    difference: Interval
    """Mean difference of the scores, with its 95 % interval."""
    departed: bool = False

    @property
    def comparison(self) -> str:
        return f"{self.one} - {self.other}"

    def __str__(self) -> str:
        value, low, high = self.difference.value, self.difference.low, self.difference.high
        return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]{'*' * self.departed}"


def paired_differences(experiment: Experiment, found: Mapping[str, Finding]) -> list[Paired]:
    """Return the paired differences of rows with both columns and at least two seeds, and of these rows together."""
    made = []
    for contrast in (*experiment.primary, *experiment.secondary):
        primary, rows, departed = contrast in experiment.primary, [], False
        for name, row in experiment.table.items():
            cells = [row[column] for column in contrast if column in row]
            values = [_values(cell, found) for cell in cells]
            pairs = zip(*values, strict=False) if len(cells) == 2 else ()
            own = [one - other for one, other in pairs if one is not None and other is not None]
            if len(own) >= 2:
                differs = any(found[cell.run].departed(cell.arm) for cell in cells)
                made.append(Paired(name, *contrast, primary, len(own), paired([own]), differs))
                rows.append(own)
                departed |= differs
        if len(rows) > 1:
            made.append(Paired("all data sets", *contrast, primary, sum(map(len, rows)), paired(rows), departed))
    return made


def summary(experiment: Experiment, found: Mapping[str, Finding]) -> Summary | None:
    """Return the scores of all columns with a finished run. None if there are fewer than two tasks or seeds."""
    rows = experiment.table.values()
    begun = [name for name in experiment.columns if any(_scores(row[name], found) for row in rows if name in row)]
    shared = _shared(begun, experiment, found)
    scores = dict(zip(begun, shared.scores, strict=True))
    seeds, tasks = next(iter(scores.values())).shape if scores else (0, 0)
    return Summary(tasks, seeds, aggregate(scores), shared.departed) if min(seeds, tasks) >= 2 else None


class _Shared(NamedTuple):
    scores: list[NDArray[np.float64]]
    """For each column the scores (seeds, tasks) of tasks that are finished in all columns, all with as many seeds."""
    departed: bool
    without: tuple[str, ...]


def _shared(columns: Sequence[str], experiment: Experiment, found: Mapping[str, Finding]) -> _Shared:
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


def _scores(cell: Cell, found: Mapping[str, Finding]) -> list[float]:
    return [score for score in _values(cell, found) if score is not None]


def _values(cell: Cell, found: Mapping[str, Finding]) -> Sequence[float | None]:
    """Return one score per seed, None for a seed that diverged. Empty if the run is not finished or has no scores."""
    return found[cell.run].scores.get(cell.arm, ()) if cell.run in found else ()
