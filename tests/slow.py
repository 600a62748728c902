"""Work that takes its time, in a process that is killed while it goes on."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Slow:
    """Progress that takes so many seconds at every report, so that there is time to be killed in."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Slow]:
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        time.sleep(self.seconds)


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
