"""Call functions in child processes, several at the same time. When this process is stopped, the children stop too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from synther.cores import cores, environment
from synther.errors import Failed
from synther.interrupts import interrupt_once, interrupted_by_sigterm

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_PATIENCE = 60.0
"""Seconds that children have to end after SIGTERM, before they are killed."""


class Children:
    """Runs functions in at most `count` child processes, which share the cores.

    SIGINT and SIGTERM stop all children. Each child gets a KeyboardInterrupt, so that it can clean up. When all
    children have ended, the caller gets a KeyboardInterrupt too. Children also stop when this process is killed.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # "spawn", because in a forked process the locks of PyTorch's threads may stay locked forever.
        self._spawn = multiprocessing.get_context("spawn")
        self._running: set[Any] = set()
        self._changing, self._stopped = threading.Lock(), False

    def each(self, work: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """Return `work(item)` for every item. `count` threads run `work`, which may wait for a `call`."""
        with environment(_core_share(self.count)), interrupted_by_sigterm(), ThreadPoolExecutor(self.count) as pool:
            try:
                return list(pool.map(work, items))
            except BaseException:
                self._stop()
                raise

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return `function(*given)`, computed in a new process. Function, arguments and result must be picklable."""
        here, there = self._spawn.Pipe(duplex=False)
        process = self._spawn.Process(target=_serve, args=(there, function, given))
        with self._changing:
            if self._stopped:
                raise Failed("it was stopped before it started")
            _block_ctrl_c()
            process.start()
            self._running.add(process)
        there.close()
        try:
            return here.recv()
        except EOFError:
            process.join()
            raise Failed(f"its process ended with exit code {process.exitcode}") from None
        finally:
            process.join()
            here.close()
            self._running.discard(process)

    def _stop(self) -> None:
        """Stop all children, and wait until they have ended."""
        with self._changing:
            self._stopped = True
        left, until = set(self._running), time.monotonic() + _PATIENCE
        for process in left:
            process.terminate()
        while left and time.monotonic() < until:
            ended = wait([process.sentinel for process in left], until - time.monotonic())
            left = {process for process in left if process.sentinel not in ended}
        for process in left:
            process.kill()


def _block_ctrl_c() -> None:
    """Block SIGINT in this thread and in the processes that it starts.

    So Ctrl-C in the terminal does not reach the children directly. They only get the signals that this process sends.
    """
    resource_tracker.ensure_running()  # must come first, because starting the tracker unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _core_share(count: int) -> dict[str, str]:
    """Return environment variables that limit each of `count` processes to its share of the cores."""
    share = str(max(1, cores() // count))
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or share, "SYNTHER_CORES": share}


def _serve(pipe: Connection, function: Callable[..., Any], given: Sequence[Any]) -> None:
    """Call the function in the child process, and send its result to the parent."""
    signal.signal(signal.SIGTERM, interrupt_once)
    _after_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        pipe.send(function(*given))
    except KeyboardInterrupt:
        sys.exit(1)


def end_with_parent() -> None:
    """Let this worker process of a pool ignore Ctrl-C, which its parent handles, and exit when its parent has ended.

    A parent that is killed cannot close its pool, so its workers would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _after_parent(lambda: os._exit(1))


def _after_parent(then: Callable[[], None]) -> None:
    """Call `then` in another thread when the parent process has ended."""

    def wait_for_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            then()

    threading.Thread(target=wait_for_parent, daemon=True).start()
