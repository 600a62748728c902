"""What a command prints on stdout: a table for a person or one JSON object for a machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synther.experiments.measurements import Standing


def answer(as_json: bool, facts: dict[str, Any], rows: Iterable[tuple[str, str]], title: str = "") -> None:
    """Print `facts` as JSON, or `rows` of a name and a figure as a table."""
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        table(("", ""), rows, title)


def standing(name: str, found: Standing | None, unit: str) -> list[tuple[str, str]]:
    """Rows about how good policies were: score and return, after so many updates or steps (the `unit`)."""
    if found is None:
        return []
    spreads = {"score": found.spread_of_scores, "return": found.spread_of_returns}
    return [
        (f"{name} {kind}", f"{spread} after {found.updates:,} {unit}")
        for kind, spread in spreads.items()
        if spread is not None
    ]


def seeds(count: int) -> str:
    """So many of them, in words."""
    return "1 seed" if count == 1 else f"{count} seeds"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows under a header (left out where it is empty)."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE,
        show_header=any(header),
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
    )
    for number, name in enumerate(header):
        drawn.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        drawn.add_row(*map(Text, row))  # a file may be called [red].npz
    Console(soft_wrap=False).print(drawn)
