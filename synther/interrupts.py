"""Handle SIGTERM, which schedulers and service managers send, like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise a KeyboardInterrupt inside the block when the process gets its first SIGTERM.

    Works only in the main thread. In other threads it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt_once(*given: object) -> None:
    """Handle a signal: raise a KeyboardInterrupt, and ignore any further SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM would interrupt the clean-up
    raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[Callable[[], bool]]:
    """Delay SIGINT and SIGTERM until the end of the block. Yield a function that returns whether one has come.

    Does nothing outside the main thread, because Python only interrupts the main thread.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if None in handlers.values() or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    waiting: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield lambda: bool(waiting)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
