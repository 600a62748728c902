"""What finished runs came to, how they departed from what the experiment asks for, and what a table shows of them."""

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

Values = dict[str, tuple[float | None, ...]]
"""Of each arm a number a seed, None where it has diverged."""

OLDER = "an older version"
"""What a run was made with whose preset has other settings now."""


@dataclass(frozen=True)
class Finding:
    """A finished job."""

    values: Values
    """Of each arm what the table shows of each seed: its final score, or online its final return."""
    departures: tuple[Difference, ...] = ()
    """In which it is not the job that the experiment asks for."""
    facts: dict[str, Any] = field(default_factory=dict)
    result: Result | None = None
    """Of a training."""
    shown: Literal["scores", "returns"] = "scores"
    """What of it the table shows."""
    sources: dict[str, set[str]] = field(default_factory=dict)
    """Of the arms of a run what each learned from."""

    def departed(self, arm: str) -> bool:
        """Whether the departures concern an arm: a source concerns those that learned from it."""
        concerned = {"sources": self.sources.get(arm, set()), "arms": {arm}}
        places = [departure.place for departure in self.departures]
        return any(len(place) < 2 or place[1] in concerned.get(place[0], place) for place in places)

    @property
    def scores(self) -> Values:
        """Of each arm the final score of each seed, by which tasks are put together."""
        return self.values if self.result is None else _finals(self.result, "scores")

    def peak(self, arm: str) -> Peak | None:
        """Of an arm that was evaluated more than once."""
        best = None if self.result is None or len(self.result.curves[arm]) < 2 else self.result.best(arm)
        if best is None:
            return None
        spread = best.spread_of_returns if self.shown == "returns" else best.spread_of_scores
        return None if spread is None else Peak(spread.mean, best.updates)


@dataclass(frozen=True)
class Peak:
    """The highest mean over the seeds at an evaluation, which only hindsight finds."""

    mean: float
    updates: int

    def __str__(self) -> str:
        return f"{Figure(self.mean)} after {count(self.updates)}"


def findings(experiment: Experiment, runs: Path) -> dict[str, Finding]:
    """Those of its jobs that are finished in the folder `runs`, by name."""
    found = {job.name: _finding(job, runs / job.name) for job in experiment.jobs}
    return {name: finding for name, finding in found.items() if finding is not None}


def _finding(job: RunSpec, folder: Path) -> Finding | None:
    if not job.result(folder).exists():
        return None
    # How often a run was evaluated on its way changes nothing of where it ends, its last evaluation included.
    wanted, done = (
        {name: value for name, value in content.items() if name != "evaluate_every"}
        for content in (job.to_json(), read_object(folder / "run.json"))
    )
    # The number of updates says more than that of a source's samples: the outermost come first.
    every = [*differences(done, wanted), *_outdated(job, done, folder)]
    departures = tuple(sorted(every, key=lambda departure: len(departure.place)))
    if not job.is_training:
        return Finding({arm: (value,) for arm, value in read_object(job.result(folder)).items()}, departures)
    result, provenance = Result.read(job.result(folder)), read_object(folder / PROVENANCE)
    return Finding(_finals(result, job.shown), departures, provenance, result, job.shown, job.sources_of(done))


def _outdated(job: RunSpec, done: Mapping[str, Any], folder: Path) -> Iterator[Difference]:
    """A difference for each preset whose settings have changed since the run was made."""
    for place, generator, then in job.generators(done, folder):
        if any(differences(_completed(then), generator.settings().to_json())):
            yield Difference((*place, generator.preset), OLDER, None)


def _completed(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings of a run with the defaults of options that were added later. Options that are gone remain."""
    defaults = Settings().to_json()
    return {part: {**options, **settings.get(part, {})} for part, options in defaults.items()}


def _finals(result: Result, shown: Literal["scores", "returns"]) -> Values:
    """Of the arms that were evaluated; scores only where a reference is known."""
    finals = {arm: getattr(curve[-1], shown) for arm, curve in result.curves.items() if curve}
    return {arm: values for arm, values in finals.items() if values is not None}


def told(departure: Difference) -> str:
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
    """What a table has in a cell; without numbers where its run is not finished, or all of its seeds diverged."""

    paper: Figure | None = None
    mean: float | None = None
    std: float | None = None
    """None for what was counted, not trained, and for one seed alone."""
    seeds: int = 0
    """That have a score."""
    diverged: int = 0
    departed: bool = False
    """Whether the run was another than the experiment asks for, such as a shorter one."""
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
    lost, peak = len(values) - spread.seeds, finding.peak(cell.arm)
    return Entry(cell.paper, spread.mean, std, spread.seeds, lost, departed, peak)


def average(wanted: Average, column: str, entries: Mapping[str, Mapping[str, Entry]]) -> Entry:
    """Of those lines that have the column at all; nothing as long as one of them is not finished, and no deviation
    where one of them has none."""
    cells = [entries[row][column] for row in wanted.rows if column in entries[row]]
    paper = wanted.paper.get(column)
    means = [cell.mean for cell in cells if cell.mean is not None]
    if not cells or len(means) < len(cells):
        return Entry(paper)
    departed, lost = any(cell.departed for cell in cells), sum(cell.diverged for cell in cells)
    deviations = [cell.std for cell in cells if cell.std is not None]
    std = float(np.mean(deviations)) if len(deviations) == len(cells) else None
    return Entry(paper, float(np.mean(means)), std, min(cell.seeds for cell in cells), lost, departed)
