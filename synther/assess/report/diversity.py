"""The section "Novelty and dynamics error": one point per row. Rows that are new and correct lie at the lower right."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Assessment
from synther.assess.figure import DUST
from synther.assess.report.axes import Axis, linear, logarithmic
from synther.assess.report.chart import finite, frame, points
from synther.assess.report.markup import Markup, number, place, tag

Array = NDArray[Any]

MOST_POINTS = 4_000
"""Largest number of points of each side. More points would only cover each other."""

_WIDE = 20.0
"""An axis is logarithmic if the largest value is more than this many times the lower quartile of positive values."""


def section(assessment: Assessment) -> Markup:
    cloud = assessment.cloud
    if cloud is None:
        return Markup()
    real, synthetic = finite(cloud.real), finite(cloud.synthetic)
    both = np.concatenate([real, synthetic])
    if not len(both):
        return Markup()
    lost = len(cloud.real) + len(cloud.synthetic) - len(both)
    x, y = _axis(both[:, 0], 58, 472), _axis(both[:, 1], 296, 22)
    marks = frame(x, y, "novelty: distance to the nearest real row, in stds", "dynamics error, in squared stds")
    sides = (("real", real), ("synthetic", synthetic))
    for kind, side in sides:
        chosen = side[np.arange(min(len(side), MOST_POINTS)) * len(side) // max(1, min(len(side), MOST_POINTS))]
        marks.append(points(x(chosen[:, 0]), y(chosen[:, 1]), kind))
    for kind, side in sides:
        marks += _median(x, y, side, kind) if len(side) else []
    medians = "; ".join(_median_text(kind, side) for kind, side in sides if len(side))
    drawing = tag(
        "svg", *marks, viewBox="0 0 480 336", role="img", aria_label=f"Novelty against dynamics error. {medians}"
    )
    below = (x.log and bool((both[:, 0] < x.low).any())) or (y.log and bool((both[:, 1] < y.low).any()))
    return tag("figure", _caption(cloud.judge, medians, lost, below), drawing, class_="wide")


def _axis(values: Array, start: float, stop: float) -> Axis:
    """Return a logarithmic axis if values differ by orders of magnitude, else a linear one from 0."""
    positive = values[values > 0]
    if len(positive) > 1 and values.max() > _WIDE * np.quantile(positive, 0.25):
        return logarithmic(np.append(positive[positive >= np.quantile(positive, 0.002)], values.max()), start, stop)
    return linear(np.append(values, 0.0), start, stop, spare=0.02)


def _median(x: Axis, y: Axis, side: Array, kind: str) -> list[Markup]:
    """Return a ring at the median novelty and the median dynamics error."""
    novelty, error = np.median(side, axis=0)
    where = {"cx": place(float(x(novelty))), "cy": place(float(y(error))), "r": "6"}
    return [tag("circle", **where, class_="halo"), tag("circle", **where, class_=f"ring {kind}")]


def _median_text(kind: str, side: Array) -> str:
    novelty, error = (0.0 if value < DUST else float(value) for value in np.median(side, axis=0))
    return f"{kind}: median novelty {number(novelty)}, dynamics error {number(error)}"


def _caption(judge: str, medians: str, lost: int, below: bool) -> Markup:
    text: list[str] = [
        "Each dot is a held-out ",
        tag("span", "real", class_="real"),
        " row or a ",
        tag("span", "synthetic", class_="synthetic"),
        " row. Rows further to the right differ more from the real rows, and lower rows are more correct. The correct "
        f"next observations come from {judge}. Rings show the medians of these rows: {medians}.",
    ]
    if below:
        text.append(" Values below the end of a logarithmic axis, such as 0, are drawn at its end.")
    if lost:
        text.append(f" {lost:,} rows without a finite figure are left out.")
    return tag("figcaption", *text)
