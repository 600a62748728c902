"""Files that are either whole or absent, written beside their final name, flushed and renamed; and their folders."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from synther.errors import ConfigError, Unwritable

# Several machines may share a folder: a writer is known by its machine and its process.
_HOST = "".join(letter if letter.isalnum() else "_" for letter in gethostname())


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def writing_to(path: str | os.PathLike[str], *, every: bool = True) -> Iterator[None]:
    """Turn what keeps `path` from being written inside into an error about it: every OSError, or those of disks."""
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if error.errno in _FULL:
            advice = ". The disk is full: make room, and run it again. Nothing that was there before is lost"
        elif error.errno in _FORBIDDEN:
            advice = ". Writing there is not allowed: choose another place"
        elif every:
            advice = ""
        else:
            raise
        raise Unwritable(f"{path} could not be written: {error.strerror or error}{advice}") from error


def check_writable(folder: Path) -> None:
    """Refuse a folder that may not be written to, before any work is done for it."""
    if not os.access(folder, os.W_OK):
        raise Unwritable(f"{folder} could not be written: writing there is not allowed: choose another place")


@contextmanager
def replacing(path: str | os.PathLike[str], *, tidy: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block succeeds it takes the place of `path`.

    When the block fails the temporary file or folder is removed and whatever stood at `path` is untouched.
    The suffix is kept, because some libraries choose what to write by it. What a killed writer left is cleared away
    first, unless the caller sees to that for a whole folder of files.
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
            if final.exists():  # no folder takes another's place in one step; none is ever half-removed where it stood
                os.replace(final, replaced)
        else:
            beside.chmod(0o666 & ~_umask())  # some libraries create private files; ours are as readable as any other
            _flush(beside)
        os.replace(beside, final)
        _flush(final.parent)
    finally:
        if replaced.exists() and not final.exists():
            os.replace(replaced, final)
        for leftover in (beside, replaced):
            _remove(leftover)


def _tidy(final: Path) -> None:
    """Clear away what writers of `final` on this machine that were killed have left beside it."""
    start = f".{final.stem}.{_HOST}-"
    with os.scandir(final.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(start)]
    for kind in ("replaced", "writing"):
        end = f".{kind}{final.suffix}"
        for name in names:
            writer = name.removeprefix(start).removesuffix(end)
            if not name.endswith(end) or not writer.isdigit() or _runs(int(writer)):
                continue
            if kind == "replaced" and not final.exists():  # killed between stepping aside and being replaced
                os.replace(final.with_name(name), final)
            else:
                _remove(final.with_name(name))


def _runs(process: int) -> bool:
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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_folder(folder: Path, advice: str) -> Path:
    """Raise where a file stands in the way of a folder; else say what is there of it, itself or the nearest parent."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file: {advice}")
    return there


def check_new(path: Path) -> None:
    """Raise where there is something already, which may be somebody's only copy of it."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not replaced: choose another --out, or remove it")


def partial_folder(path: Path) -> Path:
    """Where the parts of `path` gather until they are all there."""
    return path.with_name(path.name + ".partial")
