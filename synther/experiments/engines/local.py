"""One run after another, in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from synther.errors import SyntherError
from synther.experiments.engines.task import Named, Outcome, Task
from synther.locks import driver_lock, owned, worker_lock
from synther.progress import Progress

log = logging.getLogger(__name__)

_LETTING_GO = 1.0
"""Seconds in which a worker that was just stopped has let go of its lock."""


def run_here(tasks: Sequence[Task], out: Path, progress: Progress) -> list[Outcome]:
    """Each when its turn comes: what another process has begun by then is left to it."""
    return [_outcome(task, out / task.name, progress) for task in tasks]


def _outcome(task: Task, folder: Path, progress: Progress) -> Outcome:
    began = time.monotonic()
    error = None
    try:
        if task.done(folder):
            return Outcome(task.name, was_done=True)
        with owned(driver_lock(folder)), owned(worker_lock(folder), patience=_LETTING_GO):
            task.execute(folder, Named(progress, task.name))
    except (SyntherError, OSError) as refusal:  # a full disk is no defect
        error = str(refusal)
    except Exception as defect:
        log.exception("%s failed", task.name)
        error = f"{type(defect).__name__}: {defect}"
    return Outcome(task.name, time.monotonic() - began, error)
