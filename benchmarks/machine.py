"""What every table of results states about its origin: commit, machine, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import torch


def origin() -> list[str]:
    """Lines for the head of a table."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return [
        f"command: python {' '.join(sys.argv)}",
        f"commit:  {os.environ.get('SYNTHER_COMMIT') or commit or 'unknown'}",
        f"machine: {platform.machine()}, {os.cpu_count()} cores{gpu}",
        f"python:  {platform.python_version()}, torch {torch.__version__}",
    ]


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
