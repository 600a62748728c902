"""Processes that are killed or should be gone, and what stands in for worker processes."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any


class Here:
    """In the place of `Workers`: whatever is submitted is done at once, in this process."""

    submitted = 0
    """Pieces of work, by all of them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        Here.submitted += 1
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


def forked(work: Callable[[], object]) -> int:
    """Begin the work in a fork of this process, which need not import anything first, and return its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, of which those of pytest-xdist only wait
        process = os.fork()
    if not process:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return process


def killed(work: Callable[[], object], *, once: Callable[[], bool]) -> None:
    """Do the work in another process, and kill that as soon as `once` holds, which has to come before its end."""
    victim, deadline = forked(work), time.monotonic() + 60
    try:
        while not once():
            assert os.waitpid(victim, os.WNOHANG) == (0, 0), "ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.kill(victim, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL


def alive(process: int) -> bool:
    """Not gone, and not a dead process that nobody has asked about yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not holds():
        time.sleep(0.05)
    return holds()


def gone(processes: Iterable[int]) -> bool:
    """Soon, if not at once."""
    return eventually(lambda: not any(map(alive, processes)))
