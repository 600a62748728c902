"""Markdown tables, and the lines above them that say where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def head(origin: Mapping[str, str]) -> list[str]:
    """Format facts as an indented block, one fact per line. Further lines of a fact are aligned below its first one."""
    longest = max(map(len, origin), default=0) + 1
    return [
        f"    {(f'{name}:' if number == 0 else '').ljust(longest)} {line}"
        for name, value in origin.items()
        for number, line in enumerate(value.splitlines())
    ]


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as a Markdown table. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = ["| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)) + " |" for line in lines]
    return [drawn[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *drawn[1:]]
