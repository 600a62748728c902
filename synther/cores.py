"""How many cores there are to work on."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores this process may use: as many as an engine has set aside for it, or all it is bound to."""
    told = os.environ.get("SYNTHER_CORES")
    if told is not None:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
