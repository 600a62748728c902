"""Rows on their way from noise to data: one small drawing a noise level, with the real rows behind."""

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
"""How much wider a drawing is than what it must hold."""


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
        f" ones, in the plane of the real rows\u2019 two main directions, which holds {share(process.explained)} of "
        "their variance. Noise reaches far beyond the data: each drawing is as wide as its rows, and the box is where "
        "the real ones are.",
    ]
    if process.frames:
        about.append(" Below each is the state of one row, rendered.")
    return Markup(tag("p", *about) + tag("div", *steps, class_="steps"))


def _home(real: Array) -> Array:
    """Lower and upper corner (2, 2) of the box that holds all but a few stray real rows."""
    if not len(real):
        return np.array([[-1.0, -1.0], [1.0, 1.0]])
    corners = np.quantile(real, (0.005, 0.995), axis=0)
    return np.where(corners[1] > corners[0], corners, corners + np.array([[-0.5], [0.5]]))


def _step(process: Process, real: Array, home: Array, level: int) -> Markup:
    here = finite(process.steps[level])
    centre, widest = home.mean(axis=0), np.ptp(home, axis=0).max() / 2
    if len(here):
        widest = max(widest, np.quantile(np.abs(here - centre).max(axis=1), 0.99))
    half = _ROOM * float(widest)
    x = Axis(centre[0] - half, centre[0] + half, 0, _SIDE)
    y = Axis(centre[1] - half, centre[1] + half, _SIDE, 0)
    (left, right), (floor, top) = x(home[:, 0]), y(home[:, 1])
    box = f"M{place(left)} {place(floor)}H{place(right)}V{place(top)}H{place(left)}z"
    marks = [
        points(x(real[:, 0]), y(real[:, 1]), "real"),
        points(x(here[:, 0]), y(here[:, 1]), "synthetic"),
        tag("path", d=box, class_="home"),
    ]
    sigma = number(process.sigmas[level], digits=3)
    name = f"Noise level {sigma}: {len(here)} rows in a square of side {number(2 * half, digits=2)}"
    drawing = tag("svg", *marks, viewBox=f"0 0 {place(_SIDE)} {place(_SIDE)}", role="img", aria_label=name)
    reach = tag("span", f"\u00b1{number(half, digits=2)}", class_="reach")
    parts = [tag("figcaption", tag("span", f"\u03c3 = {sigma}"), reach), drawing]
    if process.frames:
        source = f"data:image/png;base64,{process.frames[level]}"
        parts.append(tag("img", src=source, alt=f"One row's state, rendered at noise level {sigma}", loading="lazy"))
    return tag("figure", *parts)
