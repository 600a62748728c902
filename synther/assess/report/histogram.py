"""One column's histogram: real as an area, synthetic as a line over it, and below both their means and stds."""

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
"""Of the drawing, in its own units; the bars stand on `FLOOR`."""

_TALL = 3.0
"""A bar so many times as tall as the third tallest is cut off: else clipped values would flatten all others."""

_TEXT = 75
"""Room that the share beside a bar takes."""

_CUT_AT = 1.4
_REST = 0.25
"""Share of the rows that must lie in the other bars: else the tall bar is the distribution."""


_SMALLEST = 0.04
"""Height of a bar that can be seen, as a share of the tallest: 1 % of terminals is one."""


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
    drawing = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=_told(column))
    return tag("div", drawing, class_="shape")


def limit(heights: Array, shares: Array) -> float:
    """The tallest bar that is drawn whole, of heights and shares (2, bins)."""
    tallest = heights.max(axis=0)
    top = float(tallest.max())
    if len(tallest) > 12:
        third = float(np.sort(tallest)[-3])
        rest = shares[:, tallest <= _TALL * third].sum(axis=1).min()
        if top > _TALL * third > 0 and rest >= _REST:
            return _CUT_AT * third
    return top if top > 0 else 1.0


def _outline(x: Array, y: Array) -> str:
    """The bars' outline from floor to floor; neighbours of equal height share a line."""
    path = [f"M{place(x[0])} {FLOOR}"]
    level = place(FLOOR)
    for at, height in enumerate(y):
        if place(height) != level:
            level = place(height)
            path.append(f"H{place(x[at])}V{level}")
    path.append(f"H{place(x[-1])}V{FLOOR}")
    return "".join(path)


def _cuts(along: Axis, edges: Array, heights: Array, shares: Array, top: float) -> list[Markup]:
    """A gap across each bar that is cut off, and the share of the rows in it; bars close together tell it as one."""
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
    if not (math.isfinite(mean) and math.isfinite(std)):
        return ""
    left, middle, right = (place(float(x)) for x in along([mean - std, mean, mean + std]))
    return f"M{left} {y}H{right}M{middle} {y - 3}v6"


def _ticks(along: Axis, edges: Array) -> list[Markup]:
    """Where every bar is one whole number, so is every tick."""
    whole = np.allclose(np.diff(edges), 1.0) and np.allclose(np.mod(edges, 1.0), 0.5)
    marks = []
    for value in along.ticks(6):
        if whole and value != round(value):
            continue
        x = float(along(value))
        turn = "e" if x > WIDTH - 12 else "b" if x < 12 else None
        marks.append(tag("text", number(value), x=place(x), y=str(HEIGHT - 3), class_=turn))
    return marks


def _told(column: Column) -> str:
    """The same in words."""
    return (
        f"Histogram of {column.name}: real mean {number(column.real_mean)}, std {number(column.real_std)}; "
        f"synthetic mean {number(column.synthetic_mean)}, std {number(column.synthetic_std)}"
    )
