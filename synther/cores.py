"""How many cores there are to work on, and what processes that are started are told about them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def cores() -> int:
    """Cores this process may use: as many as an engine has set aside for it, or all it is bound to."""
    told = os.environ.get("SYNTHER_CORES")
    if told is not None:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started inside have these environment variables. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
