"""A folder as bytes, for machines that share no file system."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from synther.durable import replacing

State = dict[str, tuple[int, int, int]]

_LEVEL = 1  # weights hardly get smaller, whatever the effort


def state(folder: Path) -> State:
    """Which files there are, and which version of each."""
    found = {}
    for file in folder.rglob("*"):
        about = file.lstat()
        found[str(file.relative_to(folder))] = (about.st_ino, about.st_size, about.st_mtime_ns if file.is_file() else 0)
    return found


def pack(folder: Path) -> bytes:
    """All files of a folder that nobody writes to."""
    with TemporaryFile() as together:
        _gather(folder, together)
        return _compressed(together)


def snapshot(folder: Path, known: State | None = None) -> tuple[State, bytes] | None:
    """All files of a folder as they were at one moment; None if that is `known`, or they changed too fast.

    A run that can be killed at any moment can go on from any such moment, but not from a mixture of several.
    """
    with TemporaryFile() as together:
        try:
            before = state(folder)
            if before == known:
                return None
            _gather(folder, together)
            if state(folder) != before:
                return None
        except OSError:  # a file went, or shrank, while it was read
            return None
        return before, _compressed(together)


def unpack(parcel: bytes, folder: Path) -> None:
    """Put the files in the place of `folder` and of all that was in it."""
    with replacing(folder) as beside, tarfile.open(fileobj=BytesIO(parcel), mode="r:gz") as files:
        files.extractall(beside, filter="data")


def _gather(folder: Path, target: IO[bytes]) -> None:
    """Uncompressed, because that is quick, and what is quick is seldom disturbed."""
    with tarfile.open(fileobj=target, mode="w") as files:
        files.add(folder, arcname=".")


def _compressed(source: IO[bytes]) -> bytes:
    source.seek(0)
    target = BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=_LEVEL) as smaller:
        shutil.copyfileobj(source, smaller)
    return target.getvalue()
