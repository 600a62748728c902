"""What is done in a worker process of Ray: a run, and telling its driver about it.

The worker is a generator that Ray streams to the driver. The run itself is executed on another thread, so that it can
report whenever it likes. If the worker sees the driver's folder it works there. Else it works in a folder of its own
machine and sends it home as a parcel: at the end, and from time to time for the case that there is no end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from socket import gethostname
from tempfile import TemporaryDirectory

from synther.errors import SyntherError
from synther.experiments.engines import parcel
from synther.experiments.engines.reports import Report, Reported, ReportedLog
from synther.experiments.engines.task import Task
from synther.locks import driver_lock, owned, worker_lock

_PATIENCE = 60.0
"""Seconds in which a worker whose driver was killed has ended."""

_PARCEL_SHARE = 0.05
"""Of the time, at most, that goes into parcels."""


@dataclass(frozen=True)
class Order:
    """A task, and what its worker must know of the driver."""

    task: Task
    folder: Path
    proof: str
    """What the driver's lock says, for those who see it."""
    begun: bool
    """Whether the driver's folder has something in it."""
    parcel: bytes | None
    """That folder, once a worker has asked for it."""
    gpus: float
    cores: int
    level: int
    """Of the log records that the driver wants."""
    parcel_seconds: float
    """At least, between two parcels."""


@dataclass(frozen=True)
class Began:
    host: str


@dataclass(frozen=True)
class Wanted:
    """Instead of work: the folder, which cannot be seen from here."""


@dataclass(frozen=True)
class Sent:
    parcel: bytes


@dataclass(frozen=True)
class Ended:
    error: str | None = None
    trace: str | None = None
    """Of an error that is no refusal of ours."""


Message = Report | Began | Wanted | Sent | Ended


def work(order: Order) -> Iterator[Message]:
    """Execute the task and yield what there is to tell; the last is `Ended`, or `Wanted`."""
    apart = not _sees(driver_lock(order.folder), order.proof)
    if apart and order.begun and order.parcel is None:
        yield Wanted()
        return
    if order.gpus == 0:  # Ray would let it see them all
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["SYNTHER_CORES"] = str(order.cores)
    yield Began(gethostname())
    outbox: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_execute, args=(order, apart, outbox.put), daemon=True).start()
    while not isinstance(message := outbox.get(), Ended):
        yield message
    yield message


def _sees(lock: Path, proof: str) -> bool:
    try:
        return lock.read_text() == proof
    except OSError:
        return False


def _execute(order: Order, apart: bool, send: Callable[[Message], None]) -> None:
    ours = logging.getLogger("synther")
    ours.addHandler(ReportedLog(send))  # for good: Ray gives every run a new process
    ours.setLevel(order.level)
    try:
        (_execute_apart if apart else _execute_there)(order, send)
        ended = Ended()
    except (SyntherError, OSError) as refusal:  # a full disk is no defect
        ended = Ended(str(refusal))
    except BaseException as defect:  # whatever it is, the driver waits for it
        ended = Ended(f"{type(defect).__name__}: {defect}", traceback.format_exc())
    send(ended)


def _execute_there(order: Order, send: Callable[[Message], None]) -> None:
    with owned(worker_lock(order.folder), patience=_PATIENCE):
        order.task.execute(order.folder, Reported(send))


def _execute_apart(order: Order, send: Callable[[Message], None]) -> None:
    with TemporaryDirectory(prefix="synther-") as place:
        folder = Path(place) / order.task.name
        if order.parcel is not None:
            parcel.unpack(order.parcel, folder)
        with _sent_home(folder, send, order.parcel_seconds):
            order.task.execute(folder, Reported(send))


@contextmanager
def _sent_home(folder: Path, send: Callable[[Message], None], seconds: float) -> Iterator[None]:
    """Parcels of the folder as it is from time to time, and as it is at the end."""
    over = threading.Event()

    def send_on() -> None:
        known: parcel.State = {}
        pause = seconds
        while not over.wait(pause):
            began = time.monotonic()
            if (taken := parcel.snapshot(folder, known)) is not None:
                known, packed = taken
                send(Sent(packed))
            pause = max(seconds, (time.monotonic() - began) / _PARCEL_SHARE)

    sender = threading.Thread(target=send_on, daemon=True)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        if folder.exists():
            send(Sent(parcel.pack(folder)))
