"""Draw the pictures of an experiment: final scores as bars or lines, probabilities of improvement, learning curves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from synther.experiments.results import EvalPoint
from synther.paper.experiment import ARM_TITLES
from synther.paper.tables import Table
from synther.plots import curves, statistics
from synther.plots.curves import Bar, Curve

_ARMS = 8
"""Largest number of arms that one picture can show."""


class _Picture(NamedTuple):
    name: str
    draw: Callable[..., None]
    """A function that draws the picture, called as draw(path, note=...)."""
    departed: bool
    """Whether the picture shows a run that differs from the experiment's settings."""


def draw(table: Table, out: Path) -> list[Path]:
    """Draw the results so far into the folder `out`, and return the files."""
    files = []
    for picture in (*_bars(table), *_lines(table), *_statistics(table), *_curves(table)):
        files.append(out / f"{picture.name}.png")
        note = "some runs differ from the experiment's settings: see the table" if picture.departed else ""
        picture.draw(files[-1], note=note)
    return files


def _bars(table: Table) -> Iterator[_Picture]:
    experiment, departed = table.experiment, False
    groups: dict[str, dict[str, Bar]] = {}
    for row, cells in table.rows.items():
        for column, cell in cells.items():
            departed |= cell.departed
            if cell.mean is not None:
                group, arm = (row, column) if experiment.bars == "rows" else (column, row)
                reference = None if cell.paper is None else cell.paper.mean
                groups.setdefault(group, {})[arm] = Bar(cell.mean, cell.std or 0.0, reference)
    if experiment.bars is not None and groups:
        yield _Picture(experiment.name, partial(curves.bars, groups, title=experiment.about), departed)


def _lines(table: Table) -> Iterator[_Picture]:
    for lines in table.experiment.lines:
        series, departed = {}, False
        for column in lines.columns:
            cells = {place: table.rows[row][column] for row, place in lines.places.items()}
            departed |= any(cell.departed for cell in cells.values())
            there = [(place, cell.mean, cell.std or 0.0) for place, cell in cells.items() if cell.mean is not None]
            if there:
                at, mean, std = np.array(there).T
                series[column] = Curve(at, mean, mean - std, mean + std)
        if series:
            axis = {"share": ("fraction of the rows", curves.share), "rows": ("rows sampled", curves.count)}
            xlabel, tick = axis[lines.unit]
            suffix = "" if len(table.experiment.lines) == 1 else "-" + _slug(lines.title)
            plot = partial(curves.lines, series, title=lines.title, xlabel=xlabel, tick=tick)
            yield _Picture(f"{table.experiment.name}{suffix}", plot, departed)


def _statistics(table: Table) -> Iterator[_Picture]:
    name, title = table.experiment.name, table.experiment.about
    if table.comparisons:
        found = {(one.one, one.other): one.improvement for one in table.comparisons}
        departed = any(one.departed for one in table.comparisons)
        yield _Picture(f"{name}-improvement", partial(statistics.plot_improvement, found, title=title), departed)
    primary = {f"{one.comparison}, {one.row}": one for one in table.paired if one.primary}
    if primary:
        plot = partial(statistics.plot_differences, {label: one.difference for label, one in primary.items()})
        yield _Picture(f"{name}-differences", partial(plot, title=title), any(one.departed for one in primary.values()))
    if table.summary is not None:
        plot = partial(statistics.plot, table.summary.columns, title=title)
        yield _Picture(f"{name}-summary", plot, table.summary.departed)


def _curves(table: Table) -> Iterator[_Picture]:
    """Yield the learning curves: online one picture per row with a curve per column, else at least one per run."""
    if table.experiment.is_online:
        for row, cells in table.experiment.table.items():
            done = {column: cell for column, cell in cells.items() if cell.run in table.shown}
            shown = {column: table.shown[cell.run].curve(cell.arm) for column, cell in done.items()}
            drawn = _drawable(shown, "returns")
            if drawn:
                plot = partial(curves.plot, drawn, title=row, xlabel="steps", ylabel="return")
                departed = any(table.rows[row][column].departed for column in drawn)
                yield _Picture(f"curves/{table.experiment.name}-{_slug(row)}", plot, departed)
        return
    for name, run in table.shown.items():
        drawn = {} if run.result is None else _drawable(run.result.curves, "scores")
        arms = list(drawn)
        for start in range(0, len(arms), _ARMS):
            some = {ARM_TITLES.get(arm, arm): drawn[arm] for arm in arms[start : start + _ARMS]}
            suffix = f"-{start // _ARMS + 1}" if start else ""
            yield _Picture(f"curves/{name}{suffix}", partial(curves.plot, some, title=name), bool(run.departures))


def _drawable(points: Mapping[str, Sequence[EvalPoint]], kind: Literal["scores", "returns"]) -> dict[str, Curve]:
    """Return the learning curves over the seeds that never diverged. Curves with fewer than two points are dropped."""
    drawn = {}
    for name, evaluations in points.items():
        found = [getattr(point, kind) for point in evaluations]
        kept = [] if None in found else [seed for seed in zip(*found, strict=True) if None not in seed]
        if kept and len(evaluations) >= 2:
            drawn[name] = Curve.of([point.updates for point in evaluations], np.array(kept, np.float64).T)
    return drawn


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", title.lower()).strip("-")
