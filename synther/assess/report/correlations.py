"""The section "Correlations": pictures of the correlations of all pairs of columns, and the pairs that differ most."""

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
"""Largest number of cells along a side of a picture. With more columns, a cell shows the mean of several columns."""

PAIRS = 8
"""Number of pairs in the table of the pairs that differ most."""
LEVELS = 127
"""Number of steps from no correlation to r = 1, and to r = -1. The opacity of a cell shows the strength and its hue the
sign, so that the same picture can be shown on a light and on a dark page."""

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
    readout = tag("output", "\u00a0", class_="readout", aria_live="off")
    pairs = tag("h3", "Pairs that differ most") + _pairs(real, synthetic, names)
    return Markup(
        about
        + tag("div", *maps, class_="maps", data_columns=str(len(real)) if len(real) <= MOST_CELLS else None)
        + readout
        + pairs
    )


def png(levels: Array) -> bytes:
    """Return a PNG picture of whole numbers from -127 to 127 (rows, columns).

    The sign of a number chooses the hue of its pixel, its size the opacity.
    """
    palette, opacity = bytearray(), bytearray()
    for level in range(-LEVELS, LEVELS + 1):
        palette += bytes(_POSITIVE if level > 0 else _NEGATIVE)
        opacity.append(2 * abs(level))
    rows, columns = levels.shape
    indices = (levels + LEVELS).astype(np.uint8)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), indices], axis=1)  # filter type 0
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
    """Return a square matrix with at most `most` rows: the means of blocks of nearly equal size."""
    count = len(matrix)
    if count <= most:
        return matrix
    starts = np.arange(most) * count // most
    sizes = np.diff([*starts, count])
    summed = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    pooled: Array = summed / np.outer(sizes, sizes)
    return pooled


def _known(matrix: tuple[tuple[float, ...], ...]) -> Array:
    """Return the matrix as an array. Entries that are not finite become 0, and are drawn as no correlation."""
    values = np.array(matrix, np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _about(count: int) -> list[str]:
    text: list[str] = [
        "Pearson\u2019s r of every pair of columns, ",
        tag("span", "positive", class_="together"),
        " or ",
        tag("span", "negative", class_="opposed"),
        ". Stronger colours mean stronger correlations. An empty cell means no correlation.",
    ]
    if count > MOST_CELLS:
        text.append(f" {count:,} columns share {MOST_CELLS} cells on each side. A cell shows the mean of its columns.")
    else:
        text.append(" Point at a cell to see its value in all three pictures.")
    return text


def _map(title: str, matrix: Array, most: float, names: list[str]) -> Markup:
    """Return one picture with the names of the fields and a colour scale from -`most` to `most`."""
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
    """Return lines between the fields, and the names of the fields along both sides, moved apart if they overlap."""
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
    """Return the table of the pairs with the largest differences between real and synthetic correlations."""
    first, second = np.triu_indices(len(real), k=1)
    gap = synthetic[first, second] - real[first, second]
    headings = (
        Heading("Pair", numeric=False),
        Heading("Real", "descending"),
        Heading("Synthetic", "descending"),
        Heading("Difference", "descending", sorted=True),
    )
    rows = []
    for at in np.argsort(-np.abs(gap), kind="stable")[:PAIRS]:
        one, other = int(first[at]), int(second[at])
        figures = (real[one, other], synthetic[one, other])
        pair = Markup(tag("span", names[one]) + " " + tag("span", names[other]))
        cells = [(number(float(value), decimals=3), float(value)) for value in figures]
        rows.append([(pair, float(at)), *cells, (number(float(gap[at]), decimals=3), abs(float(gap[at])))])
    return plain(headings, rows, "Pairs of columns with the largest differences")
