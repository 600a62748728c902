"""Tables that a click sorts. Roles are said out loud, because on a narrow screen rows are drawn as cards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synther.assess.report.markup import Markup, tag


@dataclass(frozen=True)
class Heading:
    text: str
    first: Literal["ascending", "descending"] | None = "ascending"
    """Which way the first click sorts; None where there is nothing to sort by."""
    sorted: bool = False
    """The rows come in that order already."""
    numeric: bool = True


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
    """`key` is what the rows are sorted by; a row without one stays below the others."""
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
    """A small table of (text, key) that scrolls within itself where it does not fit."""
    body = [
        tag("tr", *(cell(text, heading=at, key=key) for at, (text, key) in zip(headings, row, strict=True)), role="row")
        for row in rows
    ]
    table = tag("table", head(headings), tag("tbody", *body, role="rowgroup"), role="table", aria_label=label)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)
