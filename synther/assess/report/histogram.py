"""The histogram of one column: an area for real rows, a line for synthetic rows, and below them means and stds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Column
from synther.assess.report.axes import Axis
from synther.assess.report.markup import Markup, number, place, share, tag

Array = NDArray[Any]

WIDTH, FLOOR, HEIGHT = 300, 52, 82
"""Width of the drawing, lower end of the bars, and height of the drawing, in units of the drawing."""

_TALL = 3.0
"""A bar that is more than this many times as tall as the third tallest is cut. For example, one tall bar of clipped
values would make all other bars too small to see."""

_TEXT = 75
"""Width of the text with the share of a bar that is cut."""

_CUT_AT = 1.4
"""Height at which bars are cut, as a multiple of the third tallest bar."""
_REST = 0.25
"""Smallest share of the rows in the other bars for which bars are cut. Otherwise the tall bar is most of the
distribution."""


_SMALLEST = 0.04
"""Smallest height of a bar with rows, as a share of the tallest, so that it can be seen (such as 1 % of terminals)."""


def histogram(column: Column) -> Markup:
    edges = np.asarray(column.edges, np.float64)
    if len(edges) < 2 or not np.all(np.isfinite(edges)) or not np.all(np.diff(edges) > 0):
        return Markup()
    shares = np.nan_to_num(np.array([column.real_shares, column.synthetic_shares], np.float64))
    heights = shares / np.diff(edges)
    top = limit(heights, shares)
    along = Axis(float(edges[0]), float(edges[-1]), 2, WIDTH - 2)
    up = Axis(0.0, top, FLOOR, 4)
    seen = np.where(shares > 0, np.maximum(heights, _SMALLEST * top), 0.0)
    parts = [
        tag("path", d=_outline(along(edges), up(seen[0])), class_="r"),
        tag("path", d=_outline(along(edges), up(seen[1])), class_="s"),
        *_cuts(along, edges, heights, shares, top),
        tag("path", d=_bar(along, column.real_mean, column.real_std, FLOOR + 6), class_="rb"),
        tag("path", d=_bar(along, column.synthetic_mean, column.synthetic_std, FLOOR + 12), class_="sb"),
        *_ticks(along, edges),
    ]
    drawing = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=_description(column))
    return tag("div", drawing, class_="shape")


def limit(heights: Array, shares: Array) -> float:
    """Return the height at which bars are cut, from the heights of bars and their shares of rows, both (2, bins)."""
    tallest = heights.max(axis=0)
    top = float(tallest.max())
    if len(tallest) > 12:
        third = float(np.sort(tallest)[-3])
        rest = shares[:, tallest <= _TALL * third].sum(axis=1).min()
        if top > _TALL * third > 0 and rest >= _REST:
            return _CUT_AT * third
    return top if top > 0 else 1.0


def _outline(x: Array, y: Array) -> str:
    """Return the outline of the bars as a path. Neighbouring bars of equal height share a line."""
    path = [f"M{place(x[0])} {FLOOR}"]
    level = place(FLOOR)
    for at, height in enumerate(y):
        if place(height) != level:
            level = place(height)
            path.append(f"H{place(x[at])}V{level}")
    path.append(f"H{place(x[-1])}V{FLOOR}")
    return "".join(path)


def _cuts(along: Axis, edges: Array, heights: Array, shares: Array, top: float) -> list[Markup]:
    """Return a gap across each bar that is cut, and the share of the rows in it. Bars that are close together share one
    text with the sum of their shares."""
    cut = np.flatnonzero(heights.max(axis=0) > top * (1 + 1e-9))
    lefts, rights = along(edges[cut]), along(edges[cut + 1])
    marks = [
        tag("path", d=f"M{place(a - 2)} 13L{place(b + 2)} 9", class_="cut") for a, b in zip(lefts, rights, strict=True)
    ]
    far = np.flatnonzero(lefts[1:] - rights[:-1] > 2 * _TEXT) + 1
    for group in np.split(np.arange(len(cut)), far) if len(cut) else []:
        left, right = float(lefts[group[0]]), float(rights[group[-1]])
        text = " / ".join(share(float(side)) for side in shares[:, cut[group]].sum(axis=1))
        before = left > WIDTH - right
        where = place(left - 4 if before else right + 4)
        marks.append(tag("text", text, x=where, y="12", class_="e" if before else "b"))
    return marks


def _bar(along: Axis, mean: float, std: float, y: float) -> str:
    """Return a path from mean - std to mean + std with a mark at the mean."""
    if not (math.isfinite(mean) and math.isfinite(std)):
        return ""
    left, middle, right = (place(float(x)) for x in along([mean - std, mean, mean + std]))
    return f"M{left} {y}H{right}M{middle} {y - 3}v6"


def _ticks(along: Axis, edges: Array) -> list[Markup]:
    """Return the tick labels. If every bar is one whole number, only whole numbers are labelled."""
    whole = np.allclose(np.diff(edges), 1.0) and np.allclose(np.mod(edges, 1.0), 0.5)
    marks = []
    for value in along.ticks(6):
        if whole and value != round(value):
            continue
        x = float(along(value))
        turn = "e" if x > WIDTH - 12 else "b" if x < 12 else None
        marks.append(tag("text", number(value), x=place(x), y=str(HEIGHT - 3), class_=turn))
    return marks


def _description(column: Column) -> str:
    """Return a text alternative for screen readers."""
    return (
        f"Histogram of {column.name}: real mean {number(column.real_mean)}, std {number(column.real_std)}; "
        f"synthetic mean {number(column.synthetic_mean)}, std {number(column.synthetic_std)}"
    )
