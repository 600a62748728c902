"""Several runs at once, on the machines of a Ray cluster.

Every run is one task of Ray, in a process of its own, which streams to this one what it has to tell. Ray itself tries
nothing twice: a run whose process or machine has died is sent again from here, with whatever has come home of it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from typing import Any

from synther.errors import ConfigError, MissingExtra, SyntherError
from synther.experiments.engines import parcel
from synther.experiments.engines.ray_worker import Began, Ended, Message, Order, Sent, Wanted, work
from synther.experiments.engines.reports import Board
from synther.experiments.engines.task import Named, Outcome, Task
from synther.locks import driver_lock, owned
from synther.progress import Progress

log = logging.getLogger(__name__)

_PARCEL_SECONDS = 60.0
"""Between two parcels from a worker that shares no file system with us: what a dead machine loses."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray would print on stdout that a worker died, which we say ourselves
}


def run_on_ray(
    tasks: Sequence[Task],
    out: Path,
    gpus: float | None,
    cpus: float | None,
    address: str | None,
    attempts: int,
    progress: Progress,
) -> list[Outcome]:
    """All that are not done, as many at once as the cluster has room for."""
    share = Share.checked(gpus, cpus)
    outcomes: dict[str, Outcome] = {}
    with ExitStack() as locks:
        runs = []
        for task in tasks:
            folder = out / task.name
            try:
                if task.done(folder):
                    outcomes[task.name] = Outcome(task.name, was_done=True)
                else:
                    proof = locks.enter_context(owned(driver_lock(folder)))
                    runs.append(_Run(task, folder, proof, Board(task.name, Named(progress, task.name), log)))
            except (SyntherError, OSError) as refusal:  # as in `local`
                outcomes[task.name] = Outcome(task.name, error=str(refusal))
        if runs:
            with connected(address):
                _Dispatch(share, attempts).run(runs)
        outcomes |= {run.task.name: Outcome(run.task.name, run.seconds, run.error) for run in runs}
    return [outcomes[task.name] for task in tasks]


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """The cluster this process is connected to already, or that at `address` or RAY_ADDRESS, or a new one here."""
    os.environ.update(_QUIET)  # before Ray is imported
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "the engine ray") from None
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS", "local")
    _check_address(address)
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Ray cluster can be had at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Ray itself would try for minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in host:
        raise ConfigError(f"expected the address of a Ray cluster, such as 10.0.0.1:6379 or auto, got {address}")
    try:
        create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address} ({error}): start one there with `ray start`") from error


@dataclass(frozen=True)
class Share:
    """Of a machine, that a run has for itself; None is chosen to fit the cluster."""

    gpus: float | None
    cpus: float | None

    @classmethod
    def checked(cls, gpus: float | None, cpus: float | None) -> Share:
        if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
            raise ConfigError(f"gpus must be a whole number or a fraction below 1, got {gpus:g}")
        if cpus is not None and cpus <= 0:
            raise ConfigError(f"cpus must be above 0, got {cpus:g}")
        return cls(gpus, cpus)

    def of(self, machines: Sequence[dict[str, float]]) -> tuple[float, float]:
        """GPUs and cores: one GPU where there is any, and of the cores what is a GPU's share, or one."""
        gpus = self.gpus
        if gpus is None:
            gpus = 1.0 if any(machine.get("GPU", 0) >= 1 for machine in machines) else 0.0
        fit = [machine for machine in machines if machine.get("GPU", 0) >= gpus]
        cpus = self.cpus
        if cpus is None:
            shares = [machine.get("CPU", 0) * gpus / machine["GPU"] for machine in fit] if gpus else []
            cpus = float(max(1, int(min(shares, default=1))))
        if not any(machine.get("CPU", 0) >= cpus for machine in fit):
            have = ", ".join(f"{m.get('GPU', 0):g} GPUs and {m.get('CPU', 0):g} cores" for m in machines)
            raise ConfigError(f"no machine has the {gpus:g} GPUs and {cpus:g} cores of a run: they have {have}")
        return gpus, cpus


@dataclass
class _Run:
    task: Task
    folder: Path
    proof: str
    board: Board
    attempt: int = 1
    apart: bool = False
    """Whether it is done where our folder cannot be seen."""
    began: float | None = None
    seconds: float = 0.0
    error: str | None = None

    def stop(self) -> None:
        """Of its work, for good or until the next attempt."""
        self.board.clear()
        if self.began is not None:
            self.seconds += time.monotonic() - self.began
            self.began = None


class _Dispatch:
    """Sends runs to the cluster this process is connected to, and takes in what comes back."""

    def __init__(self, share: Share, attempts: int) -> None:
        import ray

        self.attempts = attempts
        gpus, cpus = share.of([node["Resources"] for node in ray.nodes() if node["Alive"]])
        self.gpus, self.cores = gpus, max(1, int(cpus))
        # A process for each run: the memory of a GPU is given back for certain when a process ends.
        options = {"num_gpus": gpus, "num_cpus": cpus, "num_returns": "streaming", "max_retries": 0, "max_calls": 1}
        self.work: Any = ray.remote(**options)(work)
        self.streams: dict[Any, _Run] = {}

    def run(self, runs: Sequence[_Run]) -> None:
        import ray

        try:
            for run in runs:
                self._send(run)
            while self.streams:
                ready, _ = ray.wait(list(self.streams))
                self._receive(ready[0])
        finally:  # interrupted, or broken
            for stream, run in self.streams.items():
                ray.cancel(stream, force=True)
                run.stop()

    def _send(self, run: _Run) -> None:
        begun = run.folder.exists()
        order = Order(
            run.task,
            run.folder,
            run.proof,
            begun,
            parcel.pack(run.folder) if begun and run.apart else None,
            gpus=self.gpus,
            cores=self.cores,
            level=log.getEffectiveLevel(),
            parcel_seconds=_PARCEL_SECONDS,
        )
        self.streams[self.work.remote(order)] = run

    def _receive(self, stream: Any) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            self._act(stream, ray.get(next(stream)))
        except RayTaskError as failure:  # outside the run: its process cannot even read what it is to do
            self._finish(stream, f"{type(failure.cause).__name__}: {failure.cause}")
        except (RayError, StopIteration) as death:
            self._send_again(stream, death)

    def _act(self, stream: Any, message: Message) -> None:
        run = self.streams[stream]
        match message:
            case Began(host):
                run.began = time.monotonic()
                log.info("%s runs on %s", run.task.name, host)
            case Wanted():
                run.apart = True
                del self.streams[stream]
                self._send(run)
            case Sent(packed):
                run.apart = True
                parcel.unpack(packed, run.folder)
            case Ended(error, trace):
                if trace is not None:
                    log.error("%s failed\n%s", run.task.name, trace)
                self._finish(stream, error)
            case report:
                run.board.show(report)

    def _finish(self, stream: Any, error: str | None) -> None:
        run = self.streams.pop(stream)
        run.stop()
        run.error = error

    def _send_again(self, stream: Any, death: Exception) -> None:
        """After its process or its machine has died."""
        run = self.streams[stream]
        why = str(death).partition("\n")[0] or type(death).__name__
        if run.attempt == self.attempts:
            times = "once" if run.attempt == 1 else f"{run.attempt} times"
            cure = "see what killed it, such as want of memory; the same command goes on with it"
            self._finish(stream, f"its process died {times} ({why}): {cure}")
            return
        del self.streams[stream]
        run.stop()
        run.attempt += 1
        log.warning("%s begins attempt %d of %d: its process died (%s)", run.task.name, run.attempt, self.attempts, why)
        self._send(run)
