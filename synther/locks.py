"""Who works on something: a lock that ends with its owner's process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from uuid import uuid4

from synther.durable import writing_to
from synther.errors import SyntherError

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of file systems that have none."""


class Owned(SyntherError):
    """Somebody else works on it."""

    def __init__(self, lock: Path, owner: str) -> None:
        self.owner = owner
        super().__init__(f"{owner} works on it, says {lock}: wait until it is done, or stop it")


@contextmanager
def owned(lock: Path, *, patience: float = 0.0) -> Iterator[str]:
    """Own the file `lock` and what it stands for, or wait `patience` seconds for it and raise `Owned`.

    Yields the text that marks the file as owned by this process and by no other.
    """
    with writing_to(lock.parent, every=False):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(lock, time.monotonic() + patience)
    try:
        text = f"process {os.getpid()} on {gethostname()} ({uuid4().hex})"
        os.ftruncate(handle, 0)
        os.write(handle, text.encode())
        yield text
    finally:
        lock.unlink(missing_ok=True)  # still owned: a process that has opened it finds it gone and opens another
        os.close(handle)


def driver_lock(folder: Path) -> Path:
    """The lock of the process that starts and watches the run in `folder`."""
    return folder.with_name(f".{folder.name}.lock")


def worker_lock(folder: Path) -> Path:
    """The lock of the process that does the work, which may outlive a driver that was killed."""
    return folder.with_name(f".{folder.name}.worker.lock")


def _acquire(lock: Path, until: float) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(lock, handle):
                return handle
            os.close(handle)
        except BlockingIOError:
            owner = os.read(handle, 1_000).decode().partition(" (")[0]
            os.close(handle)
            if time.monotonic() >= until:
                raise Owned(lock, owner or "another process") from None
            time.sleep(0.2)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            log.warning("the file system of %s has no locks: make sure that no other process works there", lock)
            return handle


def _is(lock: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False
