"""The number of CPU cores to use, and environment variables for the processes that SynthER starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def cores() -> int:
    """Return the number of cores that this process may use.

    An engine can set it with the environment variable SYNTHER_CORES. Otherwise, it is the number of cores on which the
    operating system lets the process run.
    """
    assigned = os.environ.get("SYNTHER_CORES")
    if assigned is not None:
        return int(assigned)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables inside the block, for processes that are started there, then restore them."""
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
