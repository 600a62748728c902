"""What every table of results states about its origin, and how a table is printed."""

from __future__ import annotations

import sys

from synther.compute import pick_device
from synther.experiments.origin import origin as facts


def origin() -> list[str]:
    """Lines for the head of a table: command, version and commit, machine, libraries."""
    named = {"command": f"python {' '.join(sys.argv)}", **facts(pick_device())}
    return [f"{name + ':':9}{value}" for name, value in named.items()]


def print_table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, printed and returned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    text = "\n".join(lines)
    print(text, flush=True)
    return text
