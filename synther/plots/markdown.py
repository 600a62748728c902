"""Tables for people, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def head(origin: Mapping[str, str]) -> list[str]:
    """A fact below the other, the lines of one below each other."""
    longest = max(map(len, origin), default=0) + 1
    return [
        f"    {(f'{name}:' if number == 0 else '').ljust(longest)} {line}"
        for name, value in origin.items()
        for number, line in enumerate(value.splitlines())
    ]


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first line is the header."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = ["| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)) + " |" for line in lines]
    return [drawn[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *drawn[1:]]
