"""HDF5 files: to read from, without the other files that one may lead to, and to write into.

A full disk is an error like any other. HDF5 cannot close a file that it failed to write, and crashes the interpreter
when that ends. So it is not told: it writes through a file object that remembers what went wrong.
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


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """A file to read from, which holds all of its data itself: see `check_self_contained`."""
    import h5py

    with h5py.File(path, "r") as file:
        check_self_contained(file)
        yield file


def check_numbers(path: str | os.PathLike[str], datasets: Iterable[h5py.Dataset]) -> None:
    """Refuse datasets of anything but numbers, and of more of them than the file at `path` can hold."""
    declared = 0
    for dataset in datasets:
        if dataset.dtype.kind not in "biuf":
            raise DataError(f"{_shown(dataset.name)} holds {dataset.dtype}: expected numbers")
        # HDF5 reads whole chunks, which may be larger than the dataset is. NumPy's own product may overflow.
        largest = max(math.prod(dataset.shape or (0,)), math.prod(dataset.chunks or (0,)))
        declared += largest * dataset.dtype.itemsize
    check_size(declared, os.path.getsize(path))


def attribute(file: h5py.File, name: str) -> Any:
    """An attribute of the file: text, a number or an array of them; None where there is none."""
    if name not in file.attrs:
        return None
    held = file.attrs.get_id(name)
    if held.shape is None or len(held.shape) > 1 or (held.shape and held.dtype.kind not in "biuf"):
        raise FormatError(
            f"its attribute {name!r} has shape {held.shape}: expected text, a number or a list of numbers"
        )
    return file.attrs[name]


def check_self_contained(file: h5py.File) -> None:
    """Refuse a file that takes data from other files: through external links or storage, or virtual datasets.

    h5py follows all of them silently, so a file from somebody else could read any file of this machine as its rows.
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
        return f"{_text(name)} is a virtual dataset, made of others" if plan.get_layout() == h5d.VIRTUAL else None

    # Links first: HDF5 goes through hard links alone here, and what these lead to is in the file itself.
    found = file.id.links.visit(look_at_link, info=True) or h5o.visit(file.id, look_at_object, info=True)
    if not found:
        lost = next((name for name in soft if file.get(name) is None), None)
        found = lost and f"{_text(lost)} is a link to {_target(file, lost)}, which is not there"
    if found:
        raise FormatError(
            f"{found}: an HDF5 file must hold all of its data itself. Copy the arrays into one file and read that"
        )


def _target(file: h5py.File, name: bytes) -> str:
    """Where a link leads that is not a hard one."""
    try:
        told = file.id.links.get_val(name)
    except (TypeError, ValueError, RuntimeError):
        return "another file"
    return f"{_text(told[1])} of the file {_text(told[0])}" if isinstance(told, tuple) else _text(told)


def _text(name: bytes) -> str:
    return repr(name.decode(errors="replace"))


def _shown(name: str | None) -> str:
    return repr((name or "").lstrip("/"))


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
            with uninterrupted():  # HDF5 would take an interrupt in the midst of a write for one that failed
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
