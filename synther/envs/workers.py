"""Processes that run environments: started once, given work as often as there is some, gone when their parent is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import ParamSpec, Self, TypeVar

from synther.errors import ConfigError, Failed

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """`count` processes. Each works on one thread, so that they do not get into each other's way."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError(f"expected at least one worker process, got {count}")
        self.count = count
        # Not forked: the caller may hold threads of torch, which a fork would leave locked.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_settle)

    def submit(self, work: Callable[_Given, _Answer], *given: _Given.args, **named: _Given.kwargs) -> Future[_Answer]:
        """Have `work`, a function of a module, done by the next process that is free: see `answer`."""
        with _one_thread(), _death_explained():  # the pool starts processes as it needs them, here
            return self._pool.submit(work, *given, **named)

    def close(self) -> None:
        """End the processes, after the work that has begun; what has not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is not None:  # nobody waits for what has begun, which may take minutes
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self.close()


def answer(future: Future[_Answer]) -> _Answer:
    """What the work gave, once it is done."""
    with _death_explained():
        return future.result()


@contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy's library for matrices reads its number of threads from the environment, once, when a process begins."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _death_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise Failed(
            "a process that runs environments died before its work was done: put the body of your script under "
            "`if __name__ == '__main__':`, free some memory, or use fewer processes"
        ) from None


def _settle() -> None:
    """In each worker, first thing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches them too; their parent sees to their end
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A parent that is killed cannot close its pool, whose processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
