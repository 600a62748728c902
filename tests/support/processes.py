"""Processes that should be gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def alive(process: int) -> bool:
    """Not gone, and not a dead process that nobody has asked about yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not holds():
        time.sleep(0.05)
    return holds()


def gone(processes: Iterable[int]) -> bool:
    """Soon, if not at once."""
    return eventually(lambda: not any(map(alive, processes)))
