"""What drawings with two axes share: the frame with its ticks, and points as one short path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.report.axes import Axis
from synther.assess.report.markup import Markup, number, place, power, tag

Array = NDArray[Any]


def frame(x: Axis, y: Axis, across: str, up: str) -> list[Markup]:
    """Grid lines at the ticks of both axes, their figures, and what each axis is."""
    marks: list[Markup] = []
    left, right, floor, top = (place(value) for value in (x.start, x.stop, y.start, y.stop))
    for value in y.ticks():
        at = float(y(value))
        marks.append(tag("path", d=f"M{left} {place(at)}H{right}", class_="grid"))
        marks.append(tag("text", _figure(y, value), x=place(x.start - 6), y=place(at + 3.5), class_="e"))
    for value in x.ticks():
        at = float(x(value))
        marks.append(tag("path", d=f"M{place(at)} {floor}V{top}", class_="grid"))
        marks.append(tag("text", _figure(x, value), x=place(at), y=place(y.start + 15)))
    marks.append(tag("text", across, x=place((x.start + x.stop) / 2), y=place(y.start + 32), class_="label"))
    marks.append(tag("text", up, x="2", y="11", class_="label b"))
    return marks


def _figure(axis: Axis, value: float) -> str:
    return power(value) if axis.log and axis.high >= 1e4 * axis.low else number(value)


def points(x: Array, y: Array, kind: str) -> Markup:
    """Dots as strokes of no length: a few letters each, where circles would take fifty."""
    where = sorted({(place(a), place(b)) for a, b in zip(x, y, strict=True)})
    return tag("path", d="".join(f"M{a} {b}h0" for a, b in where), class_=f"dots {kind}")


def finite(pairs: object) -> Array:
    """Pairs (n, 2) without those that hold something else than a number."""
    array = np.asarray(pairs, np.float64).reshape(-1, 2)
    return array[np.isfinite(array).all(axis=1)]
