"""Parts of drawings with two axes: the frame with ticks and labels, and points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.report.axes import Axis
from synther.assess.report.markup import Markup, number, place, power, tag

Array = NDArray[Any]


def frame(x: Axis, y: Axis, across: str, up: str) -> list[Markup]:
    """Return grid lines at the ticks of both axes, the numbers at the ticks, and the axis labels `across` and `up`."""
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
    """Return one path with a dot at every point.

    A dot is a stroke of length zero. It takes a few letters, where a circle would take fifty.
    """
    where = sorted({(place(a), place(b)) for a, b in zip(x, y, strict=True)})
    return tag("path", d="".join(f"M{a} {b}h0" for a, b in where), class_=f"dots {kind}")


def finite(pairs: object) -> Array:
    """Return pairs as an array (n, 2), without pairs that are not finite."""
    array = np.asarray(pairs, np.float64).reshape(-1, 2)
    return array[np.isfinite(array).all(axis=1)]
