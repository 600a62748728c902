"""Finished runs: their final scores, how they differ from the experiment's settings, and table entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from synther.experiments.results import MeanStd, Result
from synther.experiments.spec import PROVENANCE, RunSpec
from synther.folder import Difference, differences, read_object
from synther.paper.experiment import Average, Cell, Experiment, Figure
from synther.plots.curves import count
from synther.presets import Settings

Shown = Literal["scores", "returns"]
Values = dict[str, tuple[float | None, ...]]
"""For each arm, one number per seed; None if the seed diverged."""

OLDER = "an older version"
"""Marks a difference in a preset's settings."""


@dataclass(frozen=True)
class Peak:
    """The best evaluation of a run by its mean over the seeds."""

    mean: float
    updates: int

    def __str__(self) -> str:
        return f"{Figure(self.mean)} after {count(self.updates)}"


@dataclass(frozen=True)
class Finding:
    """A finished job."""

    values: Values
    """Final scores or, online, final returns."""
    departures: tuple[Difference, ...] = ()
    """Differences from the job that the experiment describes."""
    facts: dict[str, Any] = field(default_factory=dict)
    result: Result | None = None
    """None for jobs that train nothing."""
    shown: Shown = "scores"
    sources: dict[str, set[str]] = field(default_factory=dict)
    """For each arm, the sources of its training data."""

    def departed(self, arm: str) -> bool:
        """Whether a difference affects the arm: one in a source affects only arms that use the source."""
        concerned = {"sources": self.sources.get(arm, set()), "arms": {arm}}
        places = [departure.place for departure in self.departures]
        return any(len(place) < 2 or place[1] in concerned.get(place[0], place) for place in places)

    @property
    def scores(self) -> Values:
        """Final scores, with which tasks are aggregated."""
        return self.values if self.result is None else _finals(self.result, "scores")

    def peak(self, arm: str) -> Peak | None:
        """None if the arm was evaluated only once."""
        best = None if self.result is None or len(self.result.curves[arm]) < 2 else self.result.best(arm)
        if best is None:
            return None
        spread = best.spread_of_returns if self.shown == "returns" else best.spread_of_scores
        return None if spread is None else Peak(spread.mean, best.updates)


def findings(experiment: Experiment, runs: Path) -> dict[str, Finding]:
    """The finished jobs in the folder `runs`, by name."""
    found = {job.name: _finding(job, runs / job.name) for job in experiment.jobs}
    return {name: finding for name, finding in found.items() if finding is not None}


def _finding(job: RunSpec, folder: Path) -> Finding | None:
    if not job.result(folder).exists():
        return None
    wanted, done = job.to_json(), read_object(folder / "run.json")
    for content in (wanted, done):
        content.pop("evaluate_every", None)  # does not change the final evaluation
    every = [*differences(done, wanted), *_outdated(job, done, folder)]
    departures = tuple(sorted(every, key=lambda departure: len(departure.place)))  # the most general ones first
    if not job.is_training:
        return Finding({arm: (value,) for arm, value in read_object(job.result(folder)).items()}, departures)
    result, provenance = Result.read(job.result(folder)), read_object(folder / PROVENANCE)
    return Finding(_finals(result, job.shown), departures, provenance, result, job.shown, job.sources_of(done))


def _outdated(job: RunSpec, done: Mapping[str, Any], folder: Path) -> Iterator[Difference]:
    """A difference for each preset whose settings have changed since the run."""
    defaults = Settings().to_json()
    for place, generator, then in job.generators(done, folder):
        # Options that were added later had their default; options that were removed count as a difference.
        completed = {part: {**options, **then.get(part, {})} for part, options in defaults.items()}
        if any(differences(completed, generator.settings().to_json())):
            yield Difference((*place, generator.preset), OLDER, None)


def _finals(result: Result, shown: Shown) -> Values:
    """Scores are known only for environments with reference returns."""
    finals = {arm: getattr(curve[-1], shown) for arm, curve in result.curves.items() if curve}
    return {arm: values for arm, values in finals.items() if values is not None}


def described(departure: Difference) -> str:
    """`updates 20 instead of 1,000,000`"""
    if departure.found == OLDER:
        return f"{'.'.join(departure.place[:-1])} created with {OLDER} of preset {departure.place[-1]}"
    found, wanted = (
        f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)
        for value in (departure.found, departure.wanted)
    )
    return f"{departure.where} {found} instead of {wanted}"


@dataclass(frozen=True)
class Entry:
    """A table cell; without numbers if its run is not finished or all seeds diverged."""

    paper: Figure | None = None
    mean: float | None = None
    std: float | None = None
    """None for a single seed and for jobs that train nothing."""
    seeds: int = 0
    """Seeds that did not diverge."""
    diverged: int = 0
    departed: bool = False
    """Whether the run differs from the experiment's settings, such as in its number of updates."""
    peak: Peak | None = None

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
    return Entry(cell.paper, spread.mean, std, spread.seeds, lost, departed, finding.peak(cell.arm))


def average(wanted: Average, column: str, entries: Mapping[str, Mapping[str, Entry]]) -> Entry:
    """Over the rows that have the column; empty until all of them are finished."""
    cells = [entries[row][column] for row in wanted.rows if column in entries[row]]
    paper = wanted.paper.get(column)
    means = [cell.mean for cell in cells if cell.mean is not None]
    if not cells or len(means) < len(cells):
        return Entry(paper)
    departed, lost = any(cell.departed for cell in cells), sum(cell.diverged for cell in cells)
    stds = [cell.std for cell in cells if cell.std is not None]
    std = float(np.mean(stds)) if len(stds) == len(cells) else None
    return Entry(paper, float(np.mean(means)), std, min(cell.seeds for cell in cells), lost, departed)
