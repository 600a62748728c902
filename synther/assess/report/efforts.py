"""The section "Quality and network calls": a drawing for each measure with a line for each sampler, and a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synther.assess.assessment import Assessment, Effort
from synther.assess.report.axes import Axis, linear, logarithmic
from synther.assess.report.chart import frame
from synther.assess.report.markup import Markup, number, place, tag
from synther.assess.report.tables import Heading, plain

_SHAPES = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "M-3.5 -3.5h7v7h-7z", "M0 -5l5 8.5h-10z", "M0 -5l5 5l-5 5l-5 -5z")
"""Marks of the samplers. Their shapes differ, so that samplers can be distinguished without colours."""

OF_SAMPLERS = "network calls: "
"""Prefix of the notes that are shown in this section instead of at the top of the page."""

_HUES = 6
_HEADINGS = (
    Heading("Sampler", numeric=False),
    Heading("Network calls", sorted=True),
    Heading("Marginal", "descending"),
    Heading("Correlation", "descending"),
    Heading("Dynamics error"),
    Heading("Seconds"),
)


def section(assessment: Assessment) -> Markup:
    efforts = sorted(assessment.efforts, key=lambda effort: effort.calls)
    if not efforts:
        return Markup()
    samplers = list(dict.fromkeys(effort.sampler for effort in assessment.efforts))
    charts = [
        _chart("Marginal similarity", efforts, [effort.marginal for effort in efforts], samplers),
        _chart("Correlation similarity", efforts, [effort.correlation for effort in efforts], samplers),
        _chart("Dynamics error", efforts, [effort.dynamics for effort in efforts], samplers),
    ]
    notes = [note.removeprefix(OF_SAMPLERS) for note in assessment.notes if note.startswith(OF_SAMPLERS)]
    notes_text = "".join(f" {note[0].upper()}{note[1:].rstrip('.')}." for note in notes)
    about = tag(
        "p",
        "Quality of each sampler against its number of network calls, which determines the cost of sampling."
        f"{notes_text}",
    )
    legend = tag("ul", *(_entry(at, sampler) for at, sampler in enumerate(samplers)), class_="legend")
    rows = [_row(effort) for effort in efforts]
    table = plain(_HEADINGS, rows, "Quality for each number of network calls")
    return Markup(about + legend + tag("div", *filter(None, charts), class_="charts") + table)


def _chart(title: str, efforts: Sequence[Effort], values: Sequence[float | None], samplers: Sequence[str]) -> Markup:
    """Return the drawing of one measure, or nothing if no sampler has a figure."""
    known = [
        (effort.sampler, effort.calls, value)
        for effort, value in zip(efforts, values, strict=True)
        if value is not None and np.isfinite(value)
    ]
    if not known:
        return Markup()
    figures = [value for _, _, value in known]
    counts = [calls for _, calls, _ in known]
    x = Axis(min(counts) / 1.25, max(counts) * 1.25, 52, 322, log=True)  # samplers differ by factors of two
    wide = min(figures) > 0 and max(figures) > 20 * min(figures)
    y = logarithmic(figures, 176, 24) if wide else linear(figures, 176, 24, spare=0.1)
    marks = frame(x, y, "network calls", title)
    for at, sampler in enumerate(samplers):
        line = [(float(x(calls)), float(y(value))) for name, calls, value in known if name == sampler]
        path = "L".join(f"{place(a)} {place(b)}" for a, b in line)
        if len(line) > 1:
            marks.append(tag("path", d=f"M{path}", class_=f"line-{at % _HUES}"))
        marks += [_mark(at, f"translate({place(a)} {place(b)})") for a, b in line]
    calls = f"{counts[0]} to {counts[-1]} network calls"
    label = f"{title} from {number(min(figures))} to {number(max(figures))} for {calls}"
    return tag("figure", tag("svg", *marks, viewBox="0 0 330 214", role="img", aria_label=label))


def _mark(at: int, where: str | None = None) -> Markup:
    return tag("path", d=_SHAPES[at % len(_SHAPES)], transform=where, class_=f"mark-{at % _HUES}")


def _entry(at: int, sampler: str) -> Markup:
    """Return the entry of the legend for the sampler number `at`."""
    return tag("li", tag("svg", _mark(at), viewBox="-6 -6 12 12", aria_hidden="true"), sampler)


def _row(effort: Effort) -> list[tuple[str, float | str | None]]:
    return [
        (effort.sampler, effort.sampler.lower()),
        (f"{effort.calls:,}", float(effort.calls)),
        (number(effort.marginal, decimals=4), effort.marginal),
        (number(effort.correlation, decimals=4), effort.correlation),
        (number(effort.dynamics), effort.dynamics),
        (number(effort.seconds, digits=2), effort.seconds),
    ]
