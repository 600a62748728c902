"""Tables that can be sorted by a click.

ARIA roles are explicit because narrow screens show rows as cards, and browsers then drop the implicit roles of tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synther.assess.report.markup import Markup, tag


@dataclass(frozen=True)
class Heading:
    """The heading of a table column."""

    text: str
    first: Literal["ascending", "descending"] | None = "ascending"
    """Order after the first click; None if the column cannot be sorted."""
    sorted: bool = False
    """Whether the rows are already in this order."""
    numeric: bool = True
    """Whether the column contains numbers, which are aligned to the right."""


def head(headings: Sequence[Heading]) -> Markup:
    return tag("thead", tag("tr", *(_heading(heading) for heading in headings), role="row"), role="rowgroup")


def _heading(heading: Heading) -> Markup:
    label = tag("button", heading.text, type="button", data_first=heading.first) if heading.first else heading.text
    return tag(
        "th",
        label,
        scope="col",
        role="columnheader",
        class_="number" if heading.numeric else None,
        aria_sort=(heading.first if heading.sorted else "none") if heading.first else None,
    )


def cell(*content: str, heading: Heading, key: float | str | None = None) -> Markup:
    """Return a table cell. Rows are sorted by `key`; rows without a key stay last."""
    known = key if isinstance(key, str) else None if key is None or not math.isfinite(key) else f"{key:.9g}"
    return tag(
        "td",
        *content,
        role="cell",
        data_label=heading.text,
        data_key=known,
        class_="number" if heading.numeric else None,
    )


def plain(headings: Sequence[Heading], rows: Sequence[Sequence[tuple[str, float | str | None]]], label: str) -> Markup:
    """Return a small table of (text, key) cells. It scrolls sideways if it does not fit."""
    body = [
        tag("tr", *(cell(text, heading=at, key=key) for at, (text, key) in zip(headings, row, strict=True)), role="row")
        for row in rows
    ]
    table = tag("table", head(headings), tag("tbody", *body, role="rowgroup"), role="table", aria_label=label)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)
