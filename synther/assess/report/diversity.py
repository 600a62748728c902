"""Novelty against dynamics error: rows that are new and right lie to the right and low."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Assessment
from synther.assess.report.axes import Axis, linear, logarithmic
from synther.assess.report.chart import finite, frame, points
from synther.assess.report.markup import Markup, number, place, tag

Array = NDArray[Any]

MOST_POINTS = 4_000
"""Of either side; more would only paint over each other."""

_WIDE = 20.0
"""An axis is logarithmic where the largest value is so many times the lower quartile."""

_DUST = 1e-12
"""What rounding leaves of nothing, which the measures call 0 too."""


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
    told = "; ".join(_middle(kind, side) for kind, side in sides if len(side))
    drawing = tag(
        "svg", *marks, viewBox="0 0 480 336", role="img", aria_label=f"Novelty against dynamics error. {told}"
    )
    below = (x.log and bool((both[:, 0] < x.low).any())) or (y.log and bool((both[:, 1] < y.low).any()))
    return tag("figure", _caption(cloud.judge, told, lost, below), drawing, class_="wide")


def _axis(values: Array, start: float, stop: float) -> Axis:
    positive = values[values > 0]
    if len(positive) > 1 and values.max() > _WIDE * np.quantile(positive, 0.25):
        return logarithmic(np.append(positive[positive >= np.quantile(positive, 0.002)], values.max()), start, stop)
    return linear(np.append(values, 0.0), start, stop, spare=0.02)


def _median(x: Axis, y: Axis, side: Array, kind: str) -> list[Markup]:
    """A ring where half of the rows are less new and half are less wrong."""
    novelty, error = np.median(side, axis=0)
    where = {"cx": place(float(x(novelty))), "cy": place(float(y(error))), "r": "6"}
    return [tag("circle", **where, class_="halo"), tag("circle", **where, class_=f"ring {kind}")]


def _middle(kind: str, side: Array) -> str:
    novelty, error = (0.0 if value < _DUST else float(value) for value in np.median(side, axis=0))
    return f"{kind}: median novelty {number(novelty)}, dynamics error {number(error)}"


def _caption(judge: str, told: str, lost: int, below: bool) -> Markup:
    text: list[str] = [
        "Each dot is a row: ",
        tag("span", "real", class_="real"),
        " ones that were held out, and ",
        tag("span", "synthetic", class_="synthetic"),
        f" ones. To the right is new, low is right. What should have followed is told by {judge}. Rings are medians "
        f"of these rows: {told}.",
    ]
    if below:
        text.append(" What lies below a logarithmic axis, 0 too, is drawn on its edge.")
    if lost:
        text.append(f" {lost:,} rows that could not be followed are left out.")
    return tag("figcaption", *text)
