"""The section "From noise to data": one small drawing for each noise level, with rows in front of real rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Assessment, Process
from synther.assess.report.axes import Axis
from synther.assess.report.chart import finite, points
from synther.assess.report.markup import Markup, number, place, share, tag

Array = NDArray[Any]

_SIDE = 180.0
_ROOM = 1.12
"""Width of a drawing, as a multiple of the width of its content."""


def section(assessment: Assessment) -> Markup:
    process = assessment.process
    if process is None or not process.steps:
        return Markup()
    real = finite(process.real)
    home = _home(real)
    steps = [_step(process, real, home, level) for level in range(len(process.steps))]
    about = [
        f"{len(process.steps[0]):,} ",
        tag("span", "synthetic", class_="synthetic"),
        " rows at falling noise levels \u03c3, in front of ",
        tag("span", "real", class_="real"),
        " rows. Both are projected on the first two principal components of the real rows, which explain "
        f"{share(process.explained)} of their variance. Noise is much wider than the data, so every drawing has its "
        "own scale. The box shows where the real rows are.",
    ]
    if process.frames:
        about.append(" Below each drawing is the rendered state of one row.")
    return Markup(tag("p", *about) + tag("div", *steps, class_="steps"))


def _home(real: Array) -> Array:
    """Return the lower and upper corner (2, 2) of the box that contains all real rows except a few outliers."""
    if not len(real):
        return np.array([[-1.0, -1.0], [1.0, 1.0]])
    corners = np.quantile(real, (0.005, 0.995), axis=0)
    return np.where(corners[1] > corners[0], corners, corners + np.array([[-0.5], [0.5]]))


def _step(process: Process, real: Array, home: Array, level: int) -> Markup:
    """Return the drawing of one noise level."""
    rows = finite(process.steps[level])
    centre, widest = home.mean(axis=0), np.ptp(home, axis=0).max() / 2
    if len(rows):
        widest = max(widest, np.quantile(np.abs(rows - centre).max(axis=1), 0.99))
    half = _ROOM * float(widest)
    x = Axis(centre[0] - half, centre[0] + half, 0, _SIDE)
    y = Axis(centre[1] - half, centre[1] + half, _SIDE, 0)
    (left, right), (floor, top) = x(home[:, 0]), y(home[:, 1])
    box = f"M{place(left)} {place(floor)}H{place(right)}V{place(top)}H{place(left)}z"
    marks = [
        points(x(real[:, 0]), y(real[:, 1]), "real"),
        points(x(rows[:, 0]), y(rows[:, 1]), "synthetic"),
        tag("path", d=box, class_="home"),
    ]
    sigma = number(process.sigmas[level], digits=3)
    name = f"Noise level {sigma}: {len(rows)} rows in a square of side {number(2 * half, digits=2)}"
    drawing = tag("svg", *marks, viewBox=f"0 0 {place(_SIDE)} {place(_SIDE)}", role="img", aria_label=name)
    reach = tag("span", f"\u00b1{number(half, digits=2)}", class_="reach")
    parts = [tag("figcaption", tag("span", f"\u03c3 = {sigma}"), reach), drawing]
    if process.frames:
        source = f"data:image/png;base64,{process.frames[level]}"
        parts.append(tag("img", src=source, alt=f"One row's state, rendered at noise level {sigma}", loading="lazy"))
    return tag("figure", *parts)
