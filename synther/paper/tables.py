"""Build an experiment's table from the folders of its runs, and write it as Markdown, JSON and pictures."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from synther.durable import replacing
from synther.errors import MissingExtra
from synther.folder import write_object
from synther.paper import findings
from synther.paper.experiment import Experiment
from synther.paper.findings import Comparison, Entry, Finding, Paired, Summary, described
from synther.plots import markdown

log = logging.getLogger(__name__)

RUNS = "runs"
"""Name of the folder of runs, which all experiments share."""

_LATE = "Mean of the second half of the evaluations, ± standard deviation over the seeds: steadier than the last one."
_PEAKS = "The best evaluation by mean score, and when it was: an upper bound for early stopping."

_PAIRED = (
    "Differences between runs of the same seed, and the 95 % interval of their mean by Student's t. Which comparison "
    "is primary was fixed before any run."
)

_WIDE = 10
"""A table with more columns than this is transposed if it has fewer lines, because it is too wide for a terminal."""

_NO_FIGURES = frozenset(("-", ""))
"""Texts of cells without a figure: the run is not finished, or the experiment does not have the cell."""

Entries = dict[str, dict[str, Entry]]


@dataclass(frozen=True)
class Table:
    """The results of an experiment so far."""

    experiment: Experiment
    found: dict[str, Finding]
    shown: dict[str, Finding]
    """The finished runs that the table shows. Runs of a pool are combined."""
    rows: Entries
    averages: Entries
    comparisons: tuple[Comparison, ...]
    paired: tuple[Paired, ...]
    summary: Summary | None
    """Only for online experiments with two or more tasks."""

    @classmethod
    def of(cls, experiment: Experiment, out: Path) -> Table:
        """Read the runs in `out`."""
        found = findings.finished(experiment, out / RUNS)
        shown = findings.pooled(experiment, found)
        rows = {
            name: {column: findings.entry(cell, shown) for column, cell in row.items()}
            for name, row in experiment.table.items()
        }
        columns, lines = experiment.columns, experiment.averages
        averages = {line.name: {name: findings.average(line, name, rows) for name in columns} for line in lines}
        comparisons, over_all = [], None
        try:
            comparisons = [findings.comparison(contrast, experiment, shown) for contrast in experiment.contrasts]
            over_all = findings.summary(experiment, shown) if experiment.is_online else None
        except MissingExtra as missing:
            log.warning("the table has no comparisons: %s", missing)
        paired = tuple(findings.paired_differences(experiment, shown))
        compared = tuple(one for one in comparisons if one is not None)
        return cls(experiment, found, shown, rows, averages, compared, paired, over_all)

    def lines(self) -> list[list[str]]:
        """Return the header and the rows as text, without empty rows and columns. Wide tables are transposed."""
        return _fitting(_with_figures(self._all_lines()))

    def _all_lines(self) -> list[list[str]]:
        columns = self.experiment.columns
        header = [self.experiment.label or self.experiment.name, *columns]
        body = [*self.rows.items(), *self.averages.items()]
        return [header, *([name, *(str(row.get(column, "")) for column in columns)] for name, row in body)]

    def evaluations(self, kind: Literal["peak", "late"]) -> list[list[str]]:
        """Return the best evaluation of each cell, or the mean of its second half. Empty if online, or if too few."""
        title = {"peak": "best evaluation", "late": "second half"}[kind]
        columns = [] if self.experiment.is_online else self.experiment.columns
        body = []
        for name, row in self.rows.items():
            shown = [getattr(row[column], kind) if column in row else None for column in columns]
            if any(shown):
                body.append([name, *(str(figure or "-") for figure in shown)])
        return _fitting(_with_figures([[title, *columns], *body])) if body else []

    def differences(self) -> list[list[str]]:
        """Return the paired differences, one line per comparison and data set. Primary comparisons come first."""
        lines = [["paired difference", "data", "score [95 % interval]", "pairs", "comparison"]]
        for one in self.paired:
            lines.append([one.comparison, one.row, str(one), str(one.seeds), "primary" if one.primary else "secondary"])
        return lines if self.paired else []

    def title(self) -> str:
        return f"{self.experiment.about}; {len(self.found)} of {len(self.experiment.jobs)} runs are finished"

    def notes(self) -> list[str]:
        """Return notes on what the numbers are and how to read them."""
        over_tasks = [*([] if self.summary is None else [str(self.summary)]), *map(str, self.comparisons)]
        own = (*self._legend(), *over_tasks, *self._departures(), *self._diverged(), *self._data(), *self._minutes())
        return [*own, *self.experiment.remarks, *self._missing()]

    def to_json(self, origin: dict[str, str]) -> dict[str, Any]:
        def plain(entries: Entries) -> dict[str, Any]:
            return {name: {column: asdict(cell) for column, cell in row.items()} for name, row in entries.items()}

        runs = {
            name: {
                "departures": [described(departure) for departure in finding.departures],
                "facts": finding.facts,
                "seconds": None if finding.result is None else finding.result.seconds,
            }
            for name, finding in self.found.items()
        }
        return {
            "experiment": self.experiment.name,
            "label": self.experiment.label,
            "origin": origin,
            "rows": plain(self.rows),
            "averages": plain(self.averages),
            "summary": None if self.summary is None else asdict(self.summary),
            "comparisons": [asdict(found) for found in self.comparisons],
            **({"paired": [asdict(found) for found in self.paired]} if self.paired else {}),
            "notes": self.notes(),
            "runs": runs,
            "unfinished": [job.name for job in self.experiment.jobs if job.name not in self.found],
        }

    def markdown(self, origin: dict[str, str]) -> str:
        notes = [f"- {note}" for note in self.notes()]
        title = f"# {self.experiment.label or self.experiment.name}: {self.experiment.about}"
        tables = {_LATE: self.evaluations("late"), _PEAKS: self.evaluations("peak"), _PAIRED: self.differences()}
        below = [line for about, table in tables.items() if table for line in (*markdown.table(table), "", about, "")]
        return "\n".join([title, "", *markdown.head(origin), "", *markdown.table(self.lines()), "", *notes, "", *below])

    def write(self, out: Path, origin: dict[str, str]) -> list[Path]:
        """Write `NAME.md`, `NAME.json` and the pictures to the folder `out`, and return the files."""
        from synther.paper.drawing import draw

        full, name = {**origin, **_trained(self.found.values())}, self.experiment.name
        write_object(out / f"{name}.json", self.to_json(full))
        with replacing(out / f"{name}.md") as beside:
            beside.write_text(self.markdown(full))
        return [out / f"{name}.md", out / f"{name}.json", *draw(self, out)]

    def _legend(self) -> Iterator[str]:
        updates = sorted({finding.result.updates for finding in self.found.values() if finding.result})
        seeds = sorted({cell.seeds + cell.diverged for row in self.rows.values() for cell in row.values()} - {0})
        if updates and seeds:
            what, when = ("return", "steps") if self.experiment.is_online else ("score", "updates")
            over = f"{_either(seeds)} seed{'s' * (seeds != [1])} after {_either(updates)} {when}"
            yield f"Mean ± standard deviation of the final {what} over {over}."
        if self.experiment.is_online:
            repeats = sorted({getattr(job, "repeat", 1) for job in self.experiment.jobs})
            taken = "no action is repeated" if repeats == [1] else f"every action is taken {_either(repeats)} times"
            yield f"A step is one decision in the environment of each seed; {taken}."
        if any(cell.paper for row in self.experiment.table.values() for cell in row.values()):
            yield "In brackets: the paper's figure."

    def _departures(self) -> Iterator[str]:
        same: dict[tuple[str, ...], list[str]] = {}
        for name, finding in self.found.items():
            if finding.departures:
                same.setdefault(tuple(map(described, finding.departures)), []).append(name)
        for departures, names in same.items():
            yield f"* differs from the experiment's settings: {', '.join(departures)}. Runs: {', '.join(names)}."

    def _diverged(self) -> Iterator[str]:
        for name, finding in self.found.items():
            for arm, values in finding.values.items():
                if None in values:
                    lost = f"{values.count(None)} of {len(values)} seeds of {arm} in {name}"
                    yield f"{lost} diverged and are excluded from the mean."

    def _data(self) -> Iterator[str]:
        data_sets = {job.name: job.data_set for job in self.experiment.jobs if job.data_set is not None}
        rows: dict[tuple[str, str], set[int]] = {}
        for name, finding in self.found.items():
            if name in data_sets:
                rows.setdefault((data_sets[name], finding.facts["data"]), set()).add(finding.facts["rows"])
        for (data, source), counts in sorted(rows.items()):
            yield f"{data}: {_either(sorted(counts))} rows, {source}."

    def _missing(self) -> Iterator[str]:
        everything = self._all_lines()
        shown = _names(_with_figures(everything))
        missing = [name for name in _names(everything) if name not in shown]
        if missing:
            yield f"Not shown, because runs are missing: {', '.join(missing)}."

    def _minutes(self) -> Iterator[str]:
        """Yield the mean training times of online experiments, because the paper compares them there."""
        taken: dict[str, list[float]] = {}
        for row in self.experiment.table.values() if self.experiment.is_online else ():
            for column, cell in row.items():
                result = self.found[cell.run].result if cell.run in self.found else None
                if result is not None:
                    taken.setdefault(column, []).append(result.seconds / 60)
        if taken:
            means = ", ".join(f"{column} {sum(minutes) / len(minutes):,.1f}" for column, minutes in taken.items())
            yield f"Mean minutes per run, with all seeds trained together: {means}."


def _with_figures(lines: list[list[str]]) -> list[list[str]]:
    """Drop rows and columns without a figure. If there is no figure at all, return all lines."""
    header, *body = lines
    body = [line for line in body if not _NO_FIGURES.issuperset(line[1:])]
    if not body:
        return lines
    columns = [column for column in zip(header, *body, strict=True) if not _NO_FIGURES.issuperset(column[1:])]
    return [list(line) for line in zip(*columns, strict=True)]


def _names(lines: list[list[str]]) -> list[str]:
    return [*(line[0] for line in lines[1:]), *lines[0][1:]]


def _fitting(lines: list[list[str]]) -> list[list[str]]:
    return [list(line) for line in zip(*lines, strict=True)] if len(lines[0]) > max(_WIDE, len(lines)) else lines


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)


def _trained(found: Collection[Finding]) -> dict[str, str]:
    """Return the commands, versions and machines of the runs, one per line."""
    origins = [finding.result.origin for finding in found if finding.result is not None]
    facts = {"trained by": [finding.facts.get("command") for finding in found]}
    facts["trained with"] = [origin.get("synther") for origin in origins]
    facts["trained on"] = [origin.get("machine") for origin in origins]
    return {name: "\n".join(dict.fromkeys(filter(None, texts))) for name, texts in facts.items() if any(texts)}
