"""HDF5 files to write into, where a full disk is an error like any other.

HDF5 cannot close a file that it failed to write, and crashes the interpreter when that ends. So it is not told: it
writes through a file object that remembers what went wrong.
"""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py

Writing = Callable[[], AbstractContextManager[None]]


@contextmanager
def created(path: Path) -> Iterator[tuple[h5py.File, Writing]]:
    """A new file, and a context for all that is written to it, which raises what keeps the disk from taking it."""
    import h5py

    with _Sink(path, "w+") as sink:
        file = None
        try:
            with sink.writing():
                file = h5py.File(sink, "w")
            yield file, sink.writing
        finally:
            with sink.writing():
                if file is not None:
                    file.close()


class _Sink(io.FileIO):
    """A file whose writes succeed, whatever becomes of them."""

    failure: OSError | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            with _uninterrupted():
                yield
        finally:
            if self.failure is not None:  # what HDF5 then finds wrong with its file only follows from that
                raise self.failure

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while self.failure is None and len(rest):
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.failure = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return self.tell() if size is None else size


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: HDF5 would take it, in the midst of a write to our file object, for one that failed."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    waiting: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
