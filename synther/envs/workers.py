"""A pool of worker processes for environments. The processes run many jobs and end with their parent."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, ParamSpec, Self, TypeVar

from synther.children import end_with_parent
from synther.cores import environment
from synther.errors import ConfigError, Failed

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LP_NUM_THREADS"), "1")
"""Environment variables that set the number of threads of NumPy's BLAS and of Mesa's software renderer at startup."""

AHEAD = 2
"""Largest number of pending jobs per process. With two, no process has to wait for the job that is needed next."""


class Workers:
    """A pool of `count` worker processes with one thread each."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError(f"expected at least one worker process, got {count}")
        self.count = count
        # Processes are spawned and not forked, because PyTorch's threads would stay locked in a fork.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=end_with_parent)

    def submit(self, work: Callable[_Given, _Answer], *given: _Given.args, **named: _Given.kwargs) -> Future[_Answer]:
        """Run `work`, a module-level function, in the next free process. Get its result with `answer`."""
        with environment(_ONE_THREAD), _death_explained():  # `submit` starts processes when they are needed
            return self._pool.submit(work, *given, **named)

    def close(self) -> None:
        """End the processes when their current jobs are finished. Jobs that have not started are cancelled."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is not None:  # do not wait for running jobs, which may take minutes
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self.close()


def in_order(workers: Workers, work: Callable[..., _Answer], given: Iterable[tuple[Any, ...]]) -> Iterator[_Answer]:
    """Call `work` with each tuple of arguments in `given`, in parallel, and yield the results in order.

    At most `AHEAD` jobs per process are pending or wait to be yielded, which limits memory.
    """
    begun: deque[Future[_Answer]] = deque()
    for arguments in given:
        begun.append(workers.submit(work, *arguments))
        if len(begun) >= AHEAD * workers.count:
            yield answer(begun.popleft())
    while begun:
        yield answer(begun.popleft())


def answer(future: Future[_Answer]) -> _Answer:
    """Wait for a job and return its result. Raises the error of the job, or `Failed` if its process died."""
    with _death_explained():
        return future.result()


@contextmanager
def _death_explained() -> Iterator[None]:
    """Replace the error for a dead worker process by one that says what to do."""
    try:
        yield
    except BrokenProcessPool:
        raise Failed(
            "a process that runs environments died before its work was done: put the body of your script under "
            "`if __name__ == '__main__':`, free some memory, or use fewer processes"
        ) from None
