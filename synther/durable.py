"""Write files and folders so that they are either complete or absent, even if the process is killed.

`replacing` yields a temporary path beside the final one. When the block ends, the file is flushed to disk and renamed.
The other functions check paths, and turn errors of the disk into readable messages.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from synther.errors import ConfigError, FormatError, Unwritable

# Part of the names of temporary files. Several machines may share a folder, so a writer is identified by its machine
# and its process id.
_HOST = "".join(letter if letter.isalnum() else "_" for letter in gethostname())


# Suffixes that a new folder may not have.
_OF_FILES = (".npz", ".hdf5", ".h5", ".parquet", ".csv", ".safetensors", ".pt", ".html", ".json", ".png")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def writing_to(path: str | os.PathLike[str], *, every: bool = True) -> Iterator[None]:
    """Turn an OSError inside the block into an `Unwritable` error about `path`, with advice.

    With `every=False`, only errors about a full disk or missing permissions are turned; others are raised unchanged.
    """
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if error.errno in _FULL:
            advice = ". The disk is full: free some space, and run the command again. No existing file was lost"
        elif error.errno in _FORBIDDEN:
            advice = ". You have no permission to write there: choose another place"
        elif every:
            advice = ""
        else:
            raise
        raise Unwritable(f"{path} could not be written: {error.strerror or error}{advice}") from error


def check_writable(folder: Path) -> None:
    """Raise an error if there is no permission to write to `folder`. Call it before any work is done."""
    if not os.access(folder, os.W_OK):
        raise Unwritable(f"{folder} could not be written. You have no permission to write there: choose another place")


@contextmanager
def replacing(path: str | os.PathLike[str], *, tidy: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`. When the block succeeds, the temporary file or folder replaces `path`.

    When the block fails, the temporary file or folder is removed, and an older file at `path` is unchanged. The
    temporary path has the same suffix, because some libraries choose the format by the suffix. Temporary files of
    killed writers are removed first, except with `tidy=False`: then the caller must remove them, for a whole folder at
    once.
    """
    with writing_to(path, every=False):
        yield from _replacing(Path(path), tidy)


def _replacing(final: Path, tidy: bool) -> Iterator[Path]:
    final.parent.mkdir(parents=True, exist_ok=True)
    if tidy:
        _tidy(final)
    beside = final.with_name(f".{final.stem}.{_HOST}-{os.getpid()}.writing{final.suffix}")
    replaced = final.with_name(f".{final.stem}.{_HOST}-{os.getpid()}.replaced{final.suffix}")
    try:
        yield beside
        if beside.is_dir():
            for file in beside.rglob("*"):
                if file.is_file():
                    _flush(file)
            if final.exists():  # a folder cannot replace another one in one step, so the old one is renamed first
                os.replace(final, replaced)
        else:
            beside.chmod(0o666 & ~_umask())  # default permissions, because some libraries create private files
            if final.is_dir():
                raise FormatError(f"{final} is a folder: expected the name of a file; choose another name")
            _flush(beside)
        os.replace(beside, final)
        _flush(final.parent)
    finally:
        if replaced.exists() and not final.exists():
            os.replace(replaced, final)
        for leftover in (beside, replaced):
            _remove(leftover)


def _tidy(final: Path) -> None:
    """Remove temporary files beside `final` that killed writers on this machine have left behind."""
    start = f".{final.stem}.{_HOST}-"
    with os.scandir(final.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(start)]
    for kind in ("replaced", "writing"):
        end = f".{kind}{final.suffix}"
        for name in names:
            writer = name.removeprefix(start).removesuffix(end)
            if not name.endswith(end) or not writer.isdigit() or _runs(int(writer)):
                continue
            if kind == "replaced" and not final.exists():  # killed after the old folder was renamed: restore it
                os.replace(final.with_name(name), final)
            else:
                _remove(final.with_name(name))


def _runs(process: int) -> bool:
    """Return whether a process with this id is running on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_folder(folder: Path, advice: str) -> Path:
    """Return `folder`, or its nearest parent that exists. Raise an error with `advice` if that is a file.

    A new folder that is named like a file, such as rows.npz, is an error too.
    """
    if folder.suffix.lower() in _OF_FILES and not folder.exists():
        raise ConfigError(f"{folder} would be a folder, but is named like a file: choose {folder.with_suffix('')}")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file: {advice}")
    return there


def check_new(path: Path) -> None:
    """Raise an error if `path` exists. It is never replaced, because it may be the only copy of the user's data."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not replaced: choose another --out, or remove it")


def partial_folder(path: Path) -> Path:
    """Return the folder in which the parts of `path` are collected until all of them are written."""
    return path.with_name(path.name + ".partial")
