"""Pictures of an experiment: final scores as bars or lines, probabilities of improvement, learning curves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from synther.experiments.results import EvalPoint
from synther.paper.comparisons import Comparison
from synther.paper.experiment import ARM_TITLES, Experiment, Lines
from synther.paper.findings import Entry, Finding
from synther.paper.tables import Entries, Table
from synther.plots import curves, statistics
from synther.plots.curves import Bar, Curve

_ARMS = 8
"""The most arms that one picture can show."""


def draw(table: Table, out: Path) -> list[Path]:
    """Draw the results so far into `out`; returns the files."""
    experiment = table.experiment
    return [
        *_bars(experiment, table.rows, out),
        *(file for lines in experiment.lines for file in _lines(experiment, lines, table.rows, out)),
        *_improvements(experiment, table.comparisons, out),
        *_summary(table, out),
        *(_curves_of_rows(table, out / "curves") if experiment.is_online else _curves_of_runs(table, out / "curves")),
    ]


def _bars(experiment: Experiment, rows: Entries, out: Path) -> Iterator[Path]:
    groups: dict[str, dict[str, Bar]] = {}
    for row, cells in rows.items():
        for column, cell in cells.items():
            if cell.mean is not None:
                group, arm = (row, column) if experiment.bars == "rows" else (column, row)
                reference = None if cell.paper is None else cell.paper.mean
                groups.setdefault(group, {})[arm] = Bar(cell.mean, cell.std or 0.0, reference)
    if experiment.bars is not None and groups:
        path = out / f"{experiment.name}.png"
        shown = [cell for cells in rows.values() for cell in cells.values()]
        curves.bars(groups, path, title=experiment.about, note=_note_on(shown))
        yield path


def _lines(experiment: Experiment, lines: Lines, rows: Entries, out: Path) -> Iterator[Path]:
    series = {}
    for column in lines.columns:
        cells = {place: rows[row][column] for row, place in lines.places.items()}
        there = [(place, cell.mean, cell.std or 0.0) for place, cell in cells.items() if cell.mean is not None]
        if there:
            at, mean, std = np.array(there).T
            series[column] = Curve(at, mean, mean - std, mean + std)
    if series:
        words = {"share": ("fraction of the rows", curves.share), "rows": ("rows sampled", curves.count)}
        xlabel, tick = words[lines.unit]
        suffix = "" if len(experiment.lines) == 1 else "-" + _slug(lines.title)
        path = out / f"{experiment.name}{suffix}.png"
        shown = [rows[row][column] for row in lines.places for column in lines.columns]
        curves.lines(series, path, title=lines.title, note=_note_on(shown), xlabel=xlabel, tick=tick)
        yield path


def _improvements(experiment: Experiment, comparisons: Sequence[Comparison], out: Path) -> Iterator[Path]:
    if comparisons:
        path = out / f"{experiment.name}-improvement.png"
        found = {(one.one, one.other): one.improvement for one in comparisons}
        note = _note(any(one.departed for one in comparisons))
        statistics.plot_improvement(found, path, title=experiment.about, note=note)
        yield path


def _summary(table: Table, out: Path) -> Iterator[Path]:
    if table.summary is not None:
        path = out / f"{table.experiment.name}-summary.png"
        note = _note(table.summary.departed)
        statistics.plot(table.summary.columns, path, title=table.experiment.about, note=note)
        yield path


def _curves_of_rows(table: Table, folder: Path) -> Iterator[Path]:
    """One picture per row, with a curve per column."""
    for row, cells in table.experiment.table.items():
        drawn = {}
        for column, cell in cells.items():
            result = table.found[cell.run].result if cell.run in table.found else None
            curve = None if result is None else _curve(result.curves[cell.arm], "returns")
            if curve is not None:
                drawn[column] = curve
        if drawn:
            path = folder / f"{table.experiment.name}-{_slug(row)}.png"
            note = _note_on([table.rows[row][column] for column in drawn])
            curves.plot(drawn, path, title=row, note=note, xlabel="steps", ylabel="return")
            yield path


def _curves_of_runs(table: Table, folder: Path) -> Iterator[Path]:
    for name, finding in table.found.items():
        yield from _curves(name, finding, folder)


def _curves(name: str, finding: Finding, folder: Path) -> Iterator[Path]:
    """One picture per run, or several if it has many arms."""
    if finding.result is None:
        return
    drawn = {arm: curve for arm, standings in finding.result.curves.items() if (curve := _curve(standings, "scores"))}
    arms = list(drawn)
    for number, start in enumerate(range(0, len(arms), _ARMS)):
        path = folder / (f"{name}.png" if number == 0 else f"{name}-{number + 1}.png")
        shown = {ARM_TITLES.get(arm, arm): drawn[arm] for arm in arms[start : start + _ARMS]}
        curves.plot(shown, path, title=name, note=_note(bool(finding.departures)))
        yield path


def _curve(standings: Sequence[EvalPoint], shown: Literal["scores", "returns"]) -> Curve | None:
    """Over the seeds that never diverged; None with fewer than two evaluations."""
    found = [getattr(standing, shown) for standing in standings]
    kept = [] if None in found else [seed for seed in zip(*found, strict=True) if None not in seed]
    if not kept or len(standings) < 2:
        return None
    return Curve.of([standing.updates for standing in standings], np.array(kept, np.float64).T)


def _note_on(shown: Sequence[Entry]) -> str:
    return _note(any(cell.departed for cell in shown))


def _note(departed: bool) -> str:
    """The footnote of a picture with runs that differ from the experiment's settings."""
    return "some runs differ from the experiment's settings: see the table" if departed else ""


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", title.lower()).strip("-")
