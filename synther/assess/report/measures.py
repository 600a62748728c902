"""The section "Measures": a table with the figures of synthetic and of held-out real rows, and their places in the
range."""

from __future__ import annotations

import math
from typing import TypeGuard

from synther.assess.assessment import Assessment, Measure
from synther.assess.report.axes import Axis
from synther.assess.report.markup import Markup, number, place, tag
from synther.assess.report.tables import Heading, cell, head

_DIRECTIONS = {
    "higher": "\u2191 higher is better",
    "lower": "\u2193 lower is better",
    "nearer": "\u2192 nearer to real is better",
}
_RARE = 0.1
"""If both figures are below this share of the range, only the lower part of the range is drawn. On the whole range both
marks would lie at its end."""

_NAME, _VALUE, _REAL, _GAP = (
    Heading("Measure", numeric=False),
    Heading("Synthetic", "descending"),
    Heading("Held-out real", "descending"),
    Heading("Comparison", "descending", numeric=False),
)


def section(assessment: Assessment) -> Markup:
    if not assessment.measures:
        return Markup()
    groups: dict[str, list[Measure]] = {}
    for measure in assessment.measures:
        groups.setdefault(measure.group, []).append(measure)
    bodies = [_group(name, members) for name, members in groups.items()]
    headings = (_NAME, _VALUE, _REAL, _GAP)
    about = (
        "Every measure is computed for the synthetic rows and for held-out real rows. Synthetic rows that reach the "
        "figure of held-out real rows are as good as real rows. On the line, the ",
        tag("span", "bar", class_="real"),
        " shows the real rows and the ",
        tag("span", "dot", class_="synthetic"),
        " the synthetic rows. A dash means that the measure does not apply to these rows.",
    )
    table = tag("table", head(headings), *bodies, class_="cards measures", role="table", aria_label="Measures")
    return Markup(tag("p", *about) + table)


def figure(measure: Measure, value: float | None) -> str:
    """Format a figure of a measure: with four decimals if it is a share or a score, else with four digits."""
    return number(value, decimals=4 if measure.high == 1 else None)


def _group(name: str, members: list[Measure]) -> Markup:
    """Return a heading and the rows of the measures below it."""
    title = tag("tr", tag("th", name, scope="rowgroup", colspan="4", role="rowheader"), class_="group", role="row")
    return tag("tbody", title, *(_row(measure) for measure in members), role="rowgroup")


def _row(measure: Measure) -> Markup:
    about = f"{measure.about} Here: {measure.detail.rstrip('.')}." if measure.detail else measure.about
    name = tag("strong", measure.label), tag("span", about, class_="about")
    gap = distance(measure)
    return tag(
        "tr",
        cell(*name, heading=_NAME, key=measure.label.lower()),
        cell(figure(measure, measure.value), heading=_VALUE, key=measure.value),
        cell(figure(measure, measure.real), heading=_REAL, key=measure.real),
        cell(_strip(measure), tag("span", _DIRECTIONS[measure.better], class_="way"), heading=_GAP, key=gap),
        role="row",
    )


def distance(measure: Measure) -> float | None:
    """Return by how much synthetic rows are worse than real rows, as a share of the range that is drawn. 0 is best."""
    if not _known(measure.value) or not _known(measure.real):
        return None
    low, high = _range(measure)
    gap = (measure.value - measure.real) / (high - low)
    return {"higher": max(-gap, 0.0), "lower": max(gap, 0.0), "nearer": abs(gap)}[measure.better]


def _range(measure: Measure) -> tuple[float, float]:
    """Return the part of the range that is drawn.

    It is the whole range. If the range has no upper end, or its upper end is far from both figures, the part contains
    both figures with a margin.
    """
    known = [value for value in (measure.value, measure.real) if _known(value)]
    low = measure.low if measure.low is not None else min([0.0, *known])
    top = max([low, *known])
    if measure.high is None or (low < top < low + _RARE * (measure.high - low) and measure.better != "higher"):
        return low, top + 0.25 * (top - low) if top > low else low + 1.0
    return (low, measure.high) if measure.high > low else (low, low + 1.0)


def _strip(measure: Measure) -> Markup:
    """Return a line with a bar for real rows and a dot for synthetic rows."""
    low, high = _range(measure)
    along = Axis(low, high, 5, 155)
    marks: list[str] = [tag("path", d="M5 8H155", class_="axis")]
    if _known(measure.real):
        marks.append(tag("path", d=f"M{place(float(along(measure.real)))} 2v12", class_="real"))
    if _known(measure.value):
        marks.append(tag("circle", cx=place(float(along(measure.value))), cy="8", r="4.5", class_="synthetic"))
    return tag("svg", *marks, viewBox="0 0 160 16", class_="strip", aria_hidden="true")


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
