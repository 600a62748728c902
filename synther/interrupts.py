"""SIGTERM, which schedulers and service managers send, does what Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """A KeyboardInterrupt at the first SIGTERM, wherever this process is. Only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt_once(*given: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would stop the cleaning up
    raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let both signals wait until the end of the block. Only the main thread is ever interrupted."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if None in handlers.values() or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
