"""Functions that all benchmarks share: the command line, the origin of a table, and printing and saving of tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from synther.compute import pick_device
from synther.origin import origin as facts


def command_line(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    return parser


def origin(device: torch.device | None = None) -> list[str]:
    """Print and return the lines above a table: command, version and commit, machine, libraries."""
    named = {"command": f"python {' '.join(sys.argv)}", **facts(device or pick_device())}
    lines = [f"{name + ':':9}{value}" for name, value in named.items()]
    print("\n".join(lines), flush=True)
    return lines


def print_table(header: list[str], rows: list[list[str]]) -> str:
    """Print and return a Markdown table."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    text = "\n".join(lines)
    print(text, flush=True)
    return text


def keep(out: Path | None, head: list[str], *parts: str) -> None:
    """Write the origin and the tables to the file `out`. None writes nothing."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join([*("    " + line for line in head), "", *parts, ""]))
