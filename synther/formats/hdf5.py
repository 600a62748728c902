"""Open HDF5 files for reading and writing, safely.

Reading refuses files with links to other files (`opened`). Writing handles a full disk (`created`): if a write fails,
HDF5 cannot close its file and crashes the interpreter at exit. So HDF5 writes to a file object that always reports
success, remembers the first error, and raises it after HDF5 has finished.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synther.errors import DataError, FormatError
from synther.interrupts import uninterrupted
from synther.schema import check_size

if TYPE_CHECKING:
    import h5py

Writing = Callable[[], AbstractContextManager[None]]
"""A function that returns a context for write operations: see `created`."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Open a file for reading. Raise an error if its data lies in other files (see `check_self_contained`)."""
    import h5py

    with h5py.File(path, "r") as file:
        check_self_contained(file)
        yield file


def check_numbers(path: str | os.PathLike[str], datasets: Iterable[h5py.Dataset]) -> None:
    """Raise an error if a dataset holds something other than numbers, or if the datasets declare much more data than
    the file at `path` can hold."""
    declared = 0
    for dataset in datasets:
        if dataset.dtype.kind not in "biuf":
            raise DataError(f"{_shown(dataset.name)} holds {dataset.dtype}: expected numbers")
        # HDF5 reads whole chunks, which may be larger than the dataset. math.prod does not overflow, unlike np.prod.
        largest = max(math.prod(dataset.shape or (0,)), math.prod(dataset.chunks or (0,)))
        declared += largest * dataset.dtype.itemsize
    check_size(declared, os.path.getsize(path))


def attribute(file: h5py.File, name: str) -> Any:
    """Return an attribute of the file (text, a number or a list of numbers), or None if it does not exist."""
    if name not in file.attrs:
        return None
    held = file.attrs.get_id(name)
    if held.shape is None or len(held.shape) > 1 or (held.shape and held.dtype.kind not in "biuf"):
        raise FormatError(
            f"its attribute {name!r} has shape {held.shape}: expected text, a number or a list of numbers"
        )
    return file.attrs[name]


def check_self_contained(file: h5py.File) -> None:
    """Raise an error if the file takes data from other files, through external links, external storage or virtual
    datasets.

    h5py follows all of these silently. A file from a stranger could therefore read any file on this machine as its
    rows.
    """
    from h5py import h5d, h5l, h5o

    soft: list[bytes] = []

    def look_at_link(name: bytes, info: Any) -> str | None:
        if info.type == h5l.TYPE_SOFT:
            soft.append(name)
        elif info.type != h5l.TYPE_HARD:
            return f"{_text(name)} is a link to {_target(file, name)}"
        return None

    def look_at_object(name: bytes, info: Any) -> str | None:
        if info.type != h5o.TYPE_DATASET:
            return None
        plan = h5d.open(file.id, name).get_create_plist()
        if plan.get_external_count():
            return f"{_text(name)} is stored in another file, {_text(plan.get_external(0)[0])}"
        return (
            f"{_text(name)} is a virtual dataset, made of other datasets" if plan.get_layout() == h5d.VIRTUAL else None
        )

    # Links are checked first. The visit of objects follows only hard links, which stay within the file.
    found = file.id.links.visit(look_at_link, info=True) or h5o.visit(file.id, look_at_object, info=True)
    if not found:
        lost = next((name for name in soft if file.get(name) is None), None)
        found = lost and f"{_text(lost)} is a link to {_target(file, lost)}, which does not exist"
    if found:
        raise FormatError(
            f"{found}: an HDF5 file must contain all of its data. Copy the arrays into one file, and read that file"
        )


def _target(file: h5py.File, name: bytes) -> str:
    """Describe the target of a soft or external link."""
    try:
        target = file.id.links.get_val(name)
    except (TypeError, ValueError, RuntimeError):
        return "another file"
    return f"{_text(target[1])} of the file {_text(target[0])}" if isinstance(target, tuple) else _text(target)


def _text(name: bytes) -> str:
    return repr(name.decode(errors="replace"))


def _shown(name: str | None) -> str:
    return repr((name or "").lstrip("/"))


@contextmanager
def created(path: Path) -> Iterator[tuple[h5py.File, Writing]]:
    """Create a file. Yield it, and a function that returns a context for write operations.

    All writing must happen in such a context. At its end an error of the disk is raised, such as a full disk.
    """
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
    """A file object that reports success for every write, and stores the first error in `failure`."""

    failure: OSError | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Delay signals inside the block, and raise the stored error at its end."""
        try:
            with uninterrupted():  # HDF5 would treat an interrupt during a write as a failed write
                yield
        finally:
            if self.failure is not None:  # replaces errors of HDF5, which are only a consequence of it
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
