"""What finished runs came to, how they departed from what the experiment asks for, and what a table shows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from synther.experiments.folder import read_object
from synther.experiments.measurements import Result, Spread
from synther.experiments.paper.experiment import Average, Cell, Contrast, Experiment, Figure
from synther.experiments.paper.sizes import Sizes
from synther.experiments.runs import Job
from synther.experiments.statistics import Interval, aggregate, improvement


@dataclass(frozen=True)
class Finding:
    """A finished job."""

    values: dict[str, tuple[float | None, ...]]
    """Of each arm the final score of each seed, None where it has diverged."""
    departures: tuple[str, ...] = ()
    """In which it is not the job that the experiment asks for: `updates 20 instead of 1,000,000`."""
    facts: dict[str, Any] = field(default_factory=dict)
    result: Result | None = None
    """Of a training."""


def findings(experiment: Experiment, runs: Path) -> dict[str, Finding]:
    """Those of its jobs that are finished in the folder `runs`, by name."""
    found = {job.name: _finding(job, runs / job.name) for job in experiment.jobs}
    return {name: finding for name, finding in found.items() if finding is not None}


def _finding(job: Job, folder: Path) -> Finding | None:
    if not job.result(folder).exists():
        return None
    # How often a run was evaluated on its way changes nothing of where it ends.
    wanted, done = (
        {name: value for name, value in content.items() if name != "evaluate_every"}
        for content in (job.to_json(), read_object(folder / "run.json"))
    )
    departures = _outermost_first(departures_of(wanted, done))
    found = read_object(job.result(folder))
    if isinstance(job, Sizes):
        return Finding({arm: (value,) for arm, value in found.items()}, departures)
    result = Result.from_json(found)
    finals = {arm: result.final(arm) for arm in result.curves}
    values = {arm: final.scores for arm, final in finals.items() if final is not None and final.scores is not None}
    return Finding(values, departures, read_object(folder / "facts.json"), result)


def departures_of(wanted: Mapping[str, Any], found: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Every value of `found` that is not as `wanted`, with its place, one after another."""
    for name in dict.fromkeys([*wanted, *found]):
        one, other = wanted.get(name), found.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from departures_of(one, other, f"{where}{name}.")
        elif one != other:
            yield f"{where}{name} {_text(other)} instead of {_text(one)}"


def _outermost_first(departures: Iterable[str]) -> tuple[str, ...]:
    """The number of updates says more than that of a source's samples."""
    return tuple(sorted(departures, key=lambda text: text.partition(" ")[0].count(".")))


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


@dataclass(frozen=True)
class Entry:
    """What a table has in a cell; without numbers where its run is not finished."""

    paper: Figure | None = None
    mean: float | None = None
    std: float | None = None
    """None for what was counted, not trained."""
    seeds: int = 0
    """That have a score."""
    diverged: int = 0
    departed: bool = False
    """Whether the run was another than the experiment asks for, such as a shorter one."""

    def __str__(self) -> str:
        own = "-" if self.mean is None else str(Figure(self.mean, self.std)) + "*" * self.departed
        return own if self.paper is None else f"{own} ({self.paper})"


def entry(cell: Cell, found: Mapping[str, Finding]) -> Entry:
    finding = found.get(cell.run)
    values = None if finding is None else finding.values.get(cell.arm)
    if finding is None or values is None:
        return Entry(cell.paper)
    departed, spread = bool(finding.departures), Spread.of(values)
    if spread is None:
        return Entry(cell.paper, diverged=len(values), departed=departed)
    std = None if finding.result is None else spread.std
    return Entry(cell.paper, spread.mean, std, spread.seeds, len(values) - spread.seeds, departed)


def average(wanted: Average, column: str, entries: Mapping[str, Mapping[str, Entry]]) -> Entry:
    """Of those lines that have the column at all; nothing as long as one of them is not finished."""
    cells = [entries[row][column] for row in wanted.rows if column in entries[row]]
    paper = wanted.paper.get(column)
    means = [cell.mean for cell in cells if cell.mean is not None]
    if not cells or len(means) < len(cells):
        return Entry(paper)
    departed, std = any(cell.departed for cell in cells), float(np.mean([cell.std or 0.0 for cell in cells]))
    lost = sum(cell.diverged for cell in cells)
    return Entry(paper, float(np.mean(means)), std, min(cell.seeds for cell in cells), lost, departed)


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

    def __str__(self) -> str:
        return (
            f"{self.one} over {self.other}, {self.tasks} tasks, {self.seeds} seeds: probability of improvement "
            f"{_interval(self.improvement, 2)}, interquartile mean {_interval(self.iqm_of_one, 1)} against "
            f"{_interval(self.iqm_of_other, 1)}."
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _interval(found: Interval, digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def comparison(contrast: Contrast, experiment: Experiment, found: Mapping[str, Finding]) -> Comparison | None:
    """None where fewer than two tasks are finished. Seeds beyond those that every task has are left out."""
    columns: tuple[list[Sequence[float]], list[Sequence[float]]] = ([], [])
    for row in experiment.table.values():
        pair = [_scores(row.get(name), found) for name in (contrast.one, contrast.other)]
        if all(pair):
            for column, scores in zip(columns, pair, strict=True):
                column.append(scores)
    if len(columns[0]) < 2:
        return None
    seeds = min(len(scores) for column in columns for scores in column)
    one, other = (np.array([scores[:seeds] for scores in column]).T for column in columns)
    iqm = {name: figures.iqm for name, figures in aggregate({"one": one, "other": other}).items()}
    better = improvement(one, other)
    return Comparison(contrast.one, contrast.other, len(columns[0]), seeds, better, iqm["one"], iqm["other"])


def _scores(cell: Cell | None, found: Mapping[str, Finding]) -> Sequence[float]:
    """Of the seeds that have one."""
    if cell is None or cell.run not in found:
        return ()
    return [score for score in found[cell.run].values.get(cell.arm, ()) if score is not None]
