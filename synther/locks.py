"""Lock files that tell which process works on something. A lock ends with its process, even if the process is
killed."""

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
"""Error numbers of file systems that do not support locks."""


class Owned(SyntherError):
    """Raised if another process holds the lock."""

    def __init__(self, lock: Path, owner: str) -> None:
        self.owner = owner
        super().__init__(f"{owner} is working on it (lock file {lock}): wait until it is done, or stop it")


@contextmanager
def owned(lock: Path, *, patience: float = 0.0) -> Iterator[str]:
    """Hold the lock file `lock` inside the block. Wait at most `patience` seconds for it, then raise `Owned`.

    Yields the text in the lock file, which is different for every lock of every process.
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
        lock.unlink(missing_ok=True)  # before the lock is released: a waiting process notices it and opens a new file
        os.close(handle)


def driver_lock(folder: Path) -> Path:
    """Return the lock file of the process that starts and watches the run in `folder`."""
    return folder.with_name(f".{folder.name}.lock")


def worker_lock(folder: Path) -> Path:
    """Return the lock file of the process that executes the run. It may live longer than a driver that was killed."""
    return folder.with_name(f".{folder.name}.worker.lock")


def _acquire(lock: Path, until: float) -> int:
    """Return the handle of the locked file. Try again until the time `until`, then raise `Owned`."""
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
            log.warning("the file system of %s has no locks: make sure that no other process writes there", lock)
            return handle


def _is(lock: Path, handle: int) -> bool:
    """Return whether `handle` is the file that `lock` names now. Its last owner may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False
