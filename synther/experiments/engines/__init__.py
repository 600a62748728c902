"""Many runs: one after another on this machine, or several at once on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from synther.durable import check_folder
from synther.errors import ConfigError
from synther.experiments.engines.local import run_here
from synther.experiments.engines.task import Outcome, Task, check_names
from synther.progress import Progress, resolve

__all__ = ["Outcome", "Task", "run_all"]


def run_all(
    tasks: Sequence[Task],
    out: Path,
    *,
    engine: Literal["local", "ray"] = "local",
    gpus: float | None = None,
    cpus: float | None = None,
    address: str | None = None,
    attempts: int = 3,
    progress: Progress | bool = True,
) -> list[Outcome]:
    """Execute each task in the folder of `out` that bears its name, and say what became of it, in the order given.

    A task that is done is left alone, one that fails is reported and the others go on. Interrupted, the same call goes
    on where it stopped. `gpus` and `cpus` (of a run), `address` (of a cluster, else one on this machine) and `attempts`
    (at a run whose worker dies) are Ray's; docs/engines.md says what they mean.
    """
    check_names(tasks)
    out = out.expanduser().resolve()
    check_folder(out, "choose a folder")
    if engine == "local":
        return run_here(tasks, out, resolve(progress))
    if engine != "ray":
        raise ConfigError(f"unknown engine {engine!r}: expected local or ray")
    from synther.experiments.engines.ray_cluster import run_on_ray

    if attempts < 1:
        raise ConfigError(f"attempts must be at least 1, got {attempts}")
    return run_on_ray(tasks, out, gpus, cpus, address, attempts, resolve(progress))
