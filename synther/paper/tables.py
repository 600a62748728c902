"""An experiment's table, from the folders of its runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synther.errors import MissingExtra
from synther.paper.comparisons import Comparison, Summary, comparison, summary
from synther.paper.experiment import Experiment
from synther.paper.findings import Entry, Finding, average, entry, findings, told

log = logging.getLogger(__name__)

RUNS = "runs"
"""The folder of all runs, which the experiments share."""


@dataclass(frozen=True)
class Table:
    """What is known of an experiment so far."""

    experiment: Experiment
    found: dict[str, Finding]
    rows: dict[str, dict[str, Entry]]
    averages: dict[str, dict[str, Entry]]
    comparisons: tuple[Comparison, ...]
    summary: Summary | None
    """Of an online experiment, over two tasks or more."""

    @classmethod
    def of(cls, experiment: Experiment, out: Path) -> Table:
        """From the runs in `out`."""
        found = findings(experiment, out / RUNS)
        rows = {name: {col: entry(cell, found) for col, cell in row.items()} for name, row in experiment.table.items()}
        averages = {
            line.name: {column: average(line, column, rows) for column in experiment.columns}
            for line in experiment.averages
        }
        return cls(experiment, found, rows, averages, *_statistics(experiment, found))

    def lines(self) -> list[list[str]]:
        """A header, then a line a row."""
        columns = self.experiment.columns
        header = [self.experiment.label or self.experiment.name, *columns]
        body = [*self.rows.items(), *self.averages.items()]
        return [header, *([name, *(str(row.get(column, "")) for column in columns)] for name, row in body)]

    def peaks(self) -> list[list[str]]:
        """As `lines`: where each stood highest on its way. Empty where nobody was evaluated on the way, and online,
        where nothing is fitted too long."""
        if self.experiment.is_online:
            return []
        columns = self.experiment.columns
        cells = {
            name: [row[column].peak if column in row else None for column in columns] for name, row in self.rows.items()
        }
        known = {name: row for name, row in cells.items() if any(row)}
        body = [[name, *("-" if peak is None else str(peak) for peak in row)] for name, row in known.items()]
        return [["best on the way", *columns], *body] if body else []

    def title(self) -> str:
        return f"{self.experiment.about}; {len(self.found)} of {len(self.experiment.jobs)} runs are finished"

    def notes(self) -> list[str]:
        """What the numbers are, and what is to be kept in mind."""
        over_tasks = [*([] if self.summary is None else [str(self.summary)]), *map(str, self.comparisons)]
        own = (*self._legend(), *over_tasks, *self._departures(), *self._lost(), *self._data(), *self._minutes())
        return [*own, *self.experiment.remarks]

    def to_json(self, origin: dict[str, str]) -> dict[str, Any]:
        plain = {name: {column: asdict(cell) for column, cell in row.items()} for name, row in self.rows.items()}
        means = {name: {column: asdict(cell) for column, cell in row.items()} for name, row in self.averages.items()}
        runs = {
            name: {
                "departures": [told(departure) for departure in finding.departures],
                "facts": finding.facts,
                "seconds": None if finding.result is None else finding.result.seconds,
            }
            for name, finding in self.found.items()
        }
        return {
            "experiment": self.experiment.name,
            "label": self.experiment.label,
            "origin": origin,
            "rows": plain,
            "averages": means,
            "summary": None if self.summary is None else asdict(self.summary),
            "comparisons": [asdict(found) for found in self.comparisons],
            "notes": self.notes(),
            "runs": runs,
            "unfinished": [job.name for job in self.experiment.jobs if job.name not in self.found],
        }

    def _legend(self) -> Iterable[str]:
        done = [finding for finding in self.found.values() if finding.result is not None]
        if done:
            seeds = sorted({len(values) for finding in done for values in finding.values.values()})
            updates = sorted({finding.result.updates for finding in done if finding.result is not None})
            told = [" or ".join(f"{number:,}" for number in numbers) for numbers in (seeds, updates)]
            what, when = ("return", "steps") if self.experiment.is_online else ("score", "updates")
            plural = "" if seeds == [1] else "s"
            yield f"Mean ± standard deviation of the final {what} over {told[0]} seed{plural} after {told[1]} {when}."
        if self.experiment.is_online:
            yield "A step is one decision in the environment of every seed: no action is repeated."
        if any(cell.paper for row in self.experiment.table.values() for cell in row.values()):
            yield "In brackets: the paper's figure."

    def _departures(self) -> Iterable[str]:
        same: dict[tuple[str, ...], list[str]] = {}
        for name, finding in self.found.items():
            if finding.departures:
                same.setdefault(tuple(map(told, finding.departures)), []).append(name)
        for departures, names in same.items():
            yield f"* not as the experiment asks: {', '.join(departures)}. So: {', '.join(names)}."

    def _lost(self) -> Iterable[str]:
        for name, finding in self.found.items():
            for arm, values in finding.values.items():
                if None in values:
                    yield f"{values.count(None)} of {len(values)} seeds of {arm} in {name} diverged and are left out."

    def _data(self) -> Iterable[str]:
        data_sets = {job.name: job.data_set for job in self.experiment.jobs if job.data_set is not None}
        rows: dict[tuple[str, str], set[int]] = {}
        for name, finding in self.found.items():
            if name in data_sets:
                rows.setdefault((data_sets[name], finding.facts["data"]), set()).add(finding.facts["rows"])
        for (data, source), counts in sorted(rows.items()):
            yield f"{data}: {' or '.join(f'{count:,}' for count in sorted(counts))} rows, {source}."

    def _minutes(self) -> Iterable[str]:
        """Of online runs, which the paper compares by what they take, too."""
        taken: dict[str, list[float]] = {}
        for row in self.experiment.table.values() if self.experiment.is_online else ():
            for column, cell in row.items():
                result = self.found[cell.run].result if cell.run in self.found else None
                if result is not None:
                    taken.setdefault(column, []).append(result.seconds / 60)
        if taken:
            told = ", ".join(f"{column} {sum(minutes) / len(minutes):,.1f}" for column, minutes in taken.items())
            yield f"Minutes of a run, all its seeds at once, on average: {told}."


def _statistics(experiment: Experiment, found: dict[str, Finding]) -> tuple[tuple[Comparison, ...], Summary | None]:
    try:
        made = [comparison(contrast, experiment, found) for contrast in experiment.contrasts]
        over_all = summary(experiment, found) if experiment.is_online else None
    except MissingExtra as missing:
        log.warning("the table goes without comparisons: %s", missing)
        return (), None
    return tuple(one for one in made if one is not None), over_all
