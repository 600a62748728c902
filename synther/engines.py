"""Execute many runs: one after another in this process, several at once in child processes, or on a Ray cluster.

With every engine, each run works in its own folder. A Ray worker works directly in this folder, so all machines of the
cluster must share the storage. If the worker of a run dies, the run is sent to another worker and resumes there.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from socket import create_connection, gethostname
from typing import Any, Literal, Protocol

from synther.children import Children
from synther.durable import check_folder
from synther.errors import ConfigError, Failed, MissingExtra, SyntherError
from synther.locks import driver_lock, owned, worker_lock
from synther.progress import Lines, Phase, Progress, Silent, resolve

__all__ = ["Outcome", "Task", "run_all"]

log = logging.getLogger(__name__)

_PATIENCE = {"local": 1.0, "ray": 120.0}
"""For each engine, the seconds to wait for the lock of a worker that was stopped.

Shared storage may release the lock of a dead machine late.
"""

ATTEMPTS = 3
"""Maximum number of times that a run is sent to a Ray worker, if its workers die."""

_CURE = "find out why it ended (often too little memory), then run the same command again, which resumes the run"

_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS_ALLOW_REGEX": r": \d+ % of ",  # show lines about progress
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # and no other lines, because Ray reports dead workers on stdout
}
"""Environment variables that configure Ray."""


class Task(Protocol):
    """One run. It must be picklable. It may be killed at any moment; executed again in the same folder, it resumes."""

    @property
    def name(self) -> str:
        """Name of the task, which is also the name of its folder."""

    def execute(self, folder: Path, progress: Progress) -> None:
        """Do the work in `folder`, or the part that is not done yet."""

    def done(self, folder: Path) -> bool:
        """Return whether the work in `folder` is finished."""


@dataclass(frozen=True)
class Outcome:
    """The result of one task."""

    name: str
    seconds: float = 0.0
    """Time spent on the task in this call, without waiting and without attempts in which the worker died."""
    error: str | None = None
    """Why the task is not finished, or None if it is."""
    was_done: bool = False
    """Whether the task was finished before this call."""

    def __str__(self) -> str:
        done = "finished before" if self.was_done else f"finished in {self.seconds:,.0f} s"
        return done if self.error is None else self.error


def run_all(
    tasks: Sequence[Task],
    out: Path,
    *,
    engine: Literal["local", "ray"] = "local",
    gpus: float | None = None,
    address: str | None = None,
    parallel: int = 1,
    progress: Progress | bool = True,
) -> list[Outcome]:
    """Execute each task in the folder `out / task.name`, and return the outcomes in the order of the tasks.

    Finished tasks are skipped. If a task fails, the others continue. After an interruption, the same call resumes.
    The engine `local` executes `parallel` tasks at the same time. With `parallel` > 1, each task has its own process.
    `gpus` (GPUs of each run) and `address` (of a cluster; default: start one on this machine) are for Ray. See
    docs/engines.md.
    """
    _check_names(tasks)
    out = out.expanduser().resolve()
    check_folder(out, "choose a folder")
    check_workers(engine, parallel, gpus, address)
    if engine == "local":
        if parallel > 1:
            return _run_in_children(tasks, out, Children(parallel), not isinstance(resolve(progress), Silent))
        how = resolve(progress), _PATIENCE["local"]
        return [_run_locally(task, out, lambda task, folder: _attempt(task, folder, *how)) for task in tasks]
    return _run_on_ray(tasks, out, gpus, address, resolve(progress))


def check_workers(
    engine: str = "local", parallel: int = 1, gpus: float | None = None, address: str | None = None
) -> None:
    """Raise an error if the options of `run_all` contradict each other."""
    if engine not in ("local", "ray"):
        raise ConfigError(f"unknown engine {engine!r}: expected local or ray")
    if parallel < 1 or (parallel > 1 and engine == "ray"):
        raise ConfigError(
            f"parallel must be at least 1, and above 1 only with the engine local, got {parallel} with {engine}"
        )
    if engine == "local" and (gpus is not None or address is not None):
        raise ConfigError("gpus and address are for the engine ray: add --engine ray, or remove them")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise ConfigError(f"gpus must be a whole number or a fraction below 1, got {gpus:g}")


def _check_names(tasks: Sequence[Task]) -> None:
    """Raise an error if the name of a task cannot be the name of a folder, or if two tasks have the same name."""
    names = [task.name for task in tasks]
    for name in names:
        if not name or Path(name).name != name or name.startswith("."):
            raise ConfigError(
                f"the name of a run must be a valid name of a folder, such as walker2d-td3_bc, got {name!r}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"the names of runs must be different, got several called {', '.join(twice)}")


class _Named:
    """Reports progress with the name of the task before the name of each phase."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name

    def phase(self, name: str, total: int, start: int = 0) -> AbstractContextManager[Phase]:
        return self.progress.phase(f"{self.name}: {name}", total, start)


def _attempt(task: Task, folder: Path, progress: Progress, patience: float) -> Outcome:
    """Execute `task`, and return its outcome. Any error becomes part of the outcome."""
    began, error = time.monotonic(), None
    try:
        with owned(worker_lock(folder), patience=patience):
            task.execute(folder, _Named(progress, task.name))
    except (SyntherError, OSError) as refusal:  # no traceback: for example a full disk is not a bug
        error = str(refusal)
    except Exception as defect:
        log.exception("%s failed", task.name)
        error = f"{type(defect).__name__}: {defect}"
    return Outcome(task.name, time.monotonic() - began, error)


def _run_locally(task: Task, out: Path, attempt: Callable[[Task, Path], Outcome]) -> Outcome:
    """Lock the folder of `task` and call `attempt`, or return an outcome that says why this is not possible."""
    folder = out / task.name
    try:
        if task.done(folder):
            return Outcome(task.name, was_done=True)
        with owned(driver_lock(folder)):
            return attempt(task, folder)
    except (SyntherError, OSError) as refusal:
        return Outcome(task.name, error=str(refusal))


def _run_in_children(tasks: Sequence[Task], out: Path, children: Children, show: bool) -> list[Outcome]:
    """Execute each task in its own child process, several at the same time."""

    def attempt(task: Task, folder: Path) -> Outcome:
        try:
            found: Outcome = children.call(_in_child, task, folder, log.getEffectiveLevel(), show)
        except Failed as death:
            return Outcome(task.name, error=f"{death}: {_CURE}")
        log.info("%s: %s", task.name, found)
        return found

    return children.each(lambda task: _run_locally(task, out, attempt), tasks)


def _in_child(task: Task, folder: Path, log_level: int, show: bool) -> Outcome:
    """Execute `task` in this child process, with logs and progress on stderr."""
    logging.basicConfig(format=f"synther: {task.name}: %(message)s", stream=sys.stderr)
    logging.getLogger("synther").setLevel(log_level)
    return _attempt(task, folder, Lines() if show else Silent(), _PATIENCE["local"])


def share(gpus: float | None, machines: Sequence[dict[str, float]]) -> tuple[float, int]:
    """Return the number of GPUs and CPU cores for each run.

    By default a run gets one GPU, if any machine has one. Its share of the cores is its share of the GPUs of a machine.
    A run without a GPU gets 1 core.
    """
    if gpus is None:
        gpus = 1.0 if any(machine.get("GPU", 0) >= 1 for machine in machines) else 0.0
    fit = [machine for machine in machines if machine.get("GPU", 0) >= gpus and machine.get("CPU", 0) >= 1]
    if not fit:
        have = ", ".join(f"{m.get('GPU', 0):g} GPUs and {m.get('CPU', 0):g} cores" for m in machines)
        raise ConfigError(f"no machine has {gpus:g} GPUs and 1 core for a run: they have {have}; lower --gpus")
    return gpus, max(1, int(min(machine["CPU"] * gpus / machine["GPU"] for machine in fit))) if gpus else 1


@contextmanager
def connected(address: str | None = None, *, show_progress: bool = False) -> Iterator[None]:
    """Connect to a Ray cluster inside the block.

    The cluster is the one that this process is already connected to, or the one at `address` or at the environment
    variable RAY_ADDRESS, or else a new one on this machine.
    """
    os.environ.update(_RAY)  # must be set before Ray is imported
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "the engine ray") from None
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS", "local")
    check_address(address)
    try:
        how: Any = {"include_dashboard": False, "log_to_driver": show_progress, "logging_level": logging.ERROR}
        ray.init(address, **how, **_own(address))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot connect to a Ray cluster at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _own(address: str) -> dict[str, str]:
    """Return options that make a new cluster listen only on this machine.

    By default Ray would listen on the network, and execute any code that it receives from there.
    """
    return {"_node_ip_address": "127.0.0.1"} if address == "local" else {}


def check_address(address: str) -> None:
    """Raise an error if no cluster answers at `address`. Ray itself would keep trying for minutes."""
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
class _Order:
    """What a Ray worker needs to execute one task."""

    task: Task
    folder: Path
    proof: str
    """Text of the driver's lock file. A worker can read the same text only if it shares the storage."""
    gpus: float
    cores: int
    log_level: int
    show_progress: bool


def _run_on_ray(
    tasks: Sequence[Task], out: Path, gpus: float | None, address: str | None, progress: Progress
) -> list[Outcome]:
    """Lock the folders of all unfinished tasks, and execute the tasks on a Ray cluster."""
    outcomes: dict[str, Outcome] = {}
    show = not isinstance(progress, Silent)
    with ExitStack() as stack:
        proofs: list[tuple[Task, str]] = []
        for task in tasks:
            try:
                if task.done(out / task.name):
                    outcomes[task.name] = Outcome(task.name, was_done=True)
                else:
                    proofs.append((task, stack.enter_context(owned(driver_lock(out / task.name)))))
            except (SyntherError, OSError) as refusal:
                outcomes[task.name] = Outcome(task.name, error=str(refusal))
        if proofs:
            stack.enter_context(connected(address, show_progress=show))
            import ray

            gpus, cores = share(gpus, [node["Resources"] for node in ray.nodes() if node["Alive"]])
            # Each run has its own process, because only the end of a process surely frees all GPU memory.
            worker = ray.remote(num_gpus=gpus, num_cpus=cores, max_retries=0, max_calls=1)(work)
            how = (gpus, cores, log.getEffectiveLevel(), show)
            orders = [_Order(task, out / task.name, proof, *how) for task, proof in proofs]
            with progress.phase("runs", len(tasks), len(outcomes)) as phase:
                outcomes |= _outcomes(orders, worker, phase)
    return [outcomes[task.name] for task in tasks]


def _outcomes(orders: Sequence[_Order], worker: Any, phase: Phase) -> dict[str, Outcome]:
    """Send the orders to Ray workers, and return the outcomes by name. Runs are sent again if their worker dies.

    The retries of Ray itself are off: it would retry a run that needs too much memory forever.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    outcomes: dict[str, Outcome] = {}
    sent = {worker.remote(order): (order, 1) for order in orders}
    try:
        while sent:
            (ready, *_), _ = ray.wait(list(sent))
            order, attempt = sent.pop(ready)
            name = order.task.name
            try:
                outcomes[name], logged = ray.get(ready)
            except RayTaskError as failure:  # the run did not start: the worker could not unpickle the task
                outcomes[name] = Outcome(name, error=f"{type(failure.cause).__name__}: {failure.cause}")
            except RayError as death:
                why = str(death).partition("\n")[0] or type(death).__name__
                if attempt < ATTEMPTS:
                    log.warning("%s: its worker died (%s); attempt %d of %d starts", name, why, attempt + 1, ATTEMPTS)
                    sent[worker.remote(order)] = order, attempt + 1
                    continue
                error = f"its worker died in attempt {attempt} of {ATTEMPTS} ({why}): {_CURE}"
                outcomes[name] = Outcome(name, error=error)
            else:
                for level, text in logged:
                    log.log(level, "%s: %s", name, text)
            phase.advance(1, name)
    finally:  # some tasks are still sent only after an interruption or an error
        for waiting in sent:
            ray.cancel(waiting, force=True)
    return outcomes


def work(order: _Order) -> tuple[Outcome, list[tuple[int, str]]]:
    """Execute an order in a Ray worker, and return the outcome and the log records.

    Progress goes to stderr, which Ray forwards to the driver.
    """
    if not _is_visible(driver_lock(order.folder), order.proof):
        error = (
            f"{order.folder} is not visible on {gethostname()}: Ray workers write directly to this folder, so put it "
            "on storage that all machines of the cluster share, under the same path on each machine"
        )
        return Outcome(order.task.name, error=error), []
    if order.gpus == 0:  # otherwise Ray lets the worker see all GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["SYNTHER_CORES"] = str(order.cores)
    ours, records = logging.getLogger("synther"), BufferingHandler(sys.maxsize)
    ours.addHandler(records)  # never removed, because the process ends with the run
    ours.setLevel(order.log_level)
    progress = Lines() if order.show_progress else Silent()
    outcome = _attempt(order.task, order.folder, progress, _PATIENCE["ray"])
    return outcome, [(record.levelno, records.format(record)) for record in records.buffer]


def _is_visible(lock: Path, proof: str) -> bool:
    """Return whether `lock` is the driver's own file, and not a different file at the same path."""
    try:
        os.listdir(lock.parent)  # makes NFS refresh its cache
        return lock.read_text() == proof
    except OSError:
        return False
