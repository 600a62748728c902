"""Correlations of all pairs of columns: pictures of real, synthetic and what differs, and the pairs most different."""

from __future__ import annotations

import base64
import struct
import zlib
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Assessment
from synther.assess.report.axes import spread
from synther.assess.report.markup import Markup, number, place, tag
from synther.assess.report.tables import Heading, plain
from synther.data.transitions import EXTRA

Array = NDArray[Any]

MOST_CELLS = 750
"""Of more columns several share a cell, which then shows their mean."""

PAIRS = 8
LEVELS = 127
"""Steps from no correlation to a full one, each way. How opaque a cell is says how strong, its hue the sign: so that
one picture stands on light and on dark paper."""

_POSITIVE, _NEGATIVE = (200, 62, 140), (14, 146, 126)
_SIDE, _LEFT, _BELOW = 240.0, 58.0, 58.0
_SHORT = {"observation": "obs", "next_observation": "next"}


def section(assessment: Assessment) -> Markup:
    real, synthetic = _known(assessment.correlations.real), _known(assessment.correlations.synthetic)
    if real.ndim != 2 or len(real) < 2:
        return Markup()
    names = [column.name for column in assessment.columns]
    difference = synthetic - real
    widest = max(0.05, float(np.abs(difference).max()))
    maps = [
        _map("Real", real, 1.0, names),
        _map("Synthetic", synthetic, 1.0, names),
        _map("Synthetic minus real", difference, widest, names),
    ]
    about = tag("p", *_about(len(real)))
    told = tag("output", "\u00a0", class_="told", aria_live="off")
    pairs = tag("h3", "Pairs that differ most") + _pairs(real, synthetic, names)
    return Markup(
        about
        + tag("div", *maps, class_="maps", data_columns=str(len(real)) if len(real) <= MOST_CELLS else None)
        + told
        + pairs
    )


def png(levels: Array) -> bytes:
    """A picture of whole numbers from -127 to 127 (rows, columns), every hue as opaque as its number is large."""
    palette, opacity = bytearray(), bytearray()
    for level in range(-LEVELS, LEVELS + 1):
        palette += bytes(_POSITIVE if level > 0 else _NEGATIVE)
        opacity.append(2 * abs(level))
    rows, columns = levels.shape
    indices = (levels + LEVELS).astype(np.uint8)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), indices], axis=1)  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", bytes(palette)),
        (b"tRNS", bytes(opacity)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def pooled(matrix: Array, most: int) -> Array:
    """A square matrix made no larger than `most` by the mean of blocks of nearly equal size."""
    count = len(matrix)
    if count <= most:
        return matrix
    starts = np.arange(most) * count // most
    sizes = np.diff([*starts, count])
    summed = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    pooled: Array = summed / np.outer(sizes, sizes)
    return pooled


def _known(matrix: tuple[tuple[float, ...], ...]) -> Array:
    """What is no number says nothing: drawn as no correlation."""
    values = np.array(matrix, np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _about(count: int) -> list[str]:
    text: list[str] = [
        "Pearson\u2019s r of every pair of columns: ",
        tag("span", "together", class_="together"),
        " or ",
        tag("span", "opposed", class_="opposed"),
        ", the stronger the fuller; nothing where they are not related.",
    ]
    if count > MOST_CELLS:
        text.append(f" {count:,} columns share {MOST_CELLS} cells, each the mean of its neighbours.")
    else:
        text.append(" Point at a cell to read it in all three.")
    return text


def _map(title: str, matrix: Array, most: float, names: list[str]) -> Markup:
    levels = np.rint(np.clip(pooled(matrix, MOST_CELLS) / most, -1, 1) * LEVELS).astype(np.int64)
    source = "data:image/png;base64," + base64.b64encode(png(levels)).decode()
    picture = tag("image", href=source, x=place(_LEFT), y="0", width=place(_SIDE), height=place(_SIDE))
    drawing = tag(
        "svg",
        picture,
        *_fields(names),
        tag("path", class_="cross", d=""),
        viewBox=f"0 0 {place(_LEFT + _SIDE + 2)} {place(_SIDE + _BELOW)}",
        role="img",
        aria_label=f"{title}: correlations of {len(matrix)} columns, from {number(-most)} to {number(most)}",
        data_most=most,
    )
    ends = [tag("span", number(value, digits=2)) for value in (-most, 0.0, most)]
    key = tag("div", tag("div", class_="ramp"), tag("div", *ends, class_="ends"), class_="key", aria_hidden="true")
    return tag("figure", tag("figcaption", title), drawing, key)


def _fields(names: list[str]) -> list[Markup]:
    """Lines between the fields, and their names along both sides, pushed apart where they would overlap."""
    fields = [(field, len(list(members))) for field, members in groupby(name.partition("[")[0] for name in names)]
    if len(fields) > 12:
        return []
    edges = np.cumsum([0, *(count for _, count in fields)]) * _SIDE / len(names)
    middles = [float(left + right) / 2 for left, right in pairwise(edges)]
    marks = [
        tag(
            "path",
            d=f"M{place(_LEFT)} {place(edge)}h{place(_SIDE)}M{place(_LEFT + edge)} 0v{place(_SIDE)}",
            class_="line",
        )
        for edge in edges[1:-1]
    ]
    for (field, _), middle, label in zip(fields, middles, spread(middles, 11, 5, _SIDE - 3), strict=True):
        name = field.removeprefix(EXTRA)
        text = _SHORT.get(field, name if len(name) < 10 else f"{name[:8]}\u2026")
        marks.append(
            tag("path", d=f"M{place(_LEFT - 7)} {place(label)}L{place(_LEFT - 1)} {place(middle)}", class_="lead")
        )
        marks.append(tag("text", text, x=place(_LEFT - 9), y=place(label + 3.5), class_="e"))
        lead = f"M{place(_LEFT + middle)} {place(_SIDE + 1)}L{place(_LEFT + label)} {place(_SIDE + 7)}"
        marks.append(tag("path", d=lead, class_="lead"))
        turn = f"translate({place(_LEFT + label + 3.5)} {place(_SIDE + 9)}) rotate(-90)"
        marks.append(tag("text", text, transform=turn, class_="e"))
    return marks


def _pairs(real: Array, synthetic: Array, names: list[str]) -> Markup:
    first, second = np.triu_indices(len(real), k=1)
    gap = synthetic[first, second] - real[first, second]
    headings = (
        Heading("Pair", numeric=False),
        Heading("Real", "descending"),
        Heading("Synthetic", "descending"),
        Heading("Gap", "descending", sorted=True),
    )
    rows = []
    for at in np.argsort(-np.abs(gap), kind="stable")[:PAIRS]:
        one, other = int(first[at]), int(second[at])
        figures = (real[one, other], synthetic[one, other])
        pair = Markup(tag("span", names[one]) + " " + tag("span", names[other]))
        cells = [(number(float(value), decimals=3), float(value)) for value in figures]
        rows.append([(pair, float(at)), *cells, (number(float(gap[at]), decimals=3), abs(float(gap[at])))])
    return plain(headings, rows, "Pairs of columns whose correlations differ most")
