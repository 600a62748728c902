"""Files that are either whole or absent: written beside their final name, flushed to disk, then renamed."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block succeeds it takes the place of `path`.

    When the block fails the temporary file or folder is removed and whatever stood at `path` is untouched.
    The suffix is kept, because some libraries choose what to write by it.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    beside = final.with_name(f".{final.stem}.{os.getpid()}.writing{final.suffix}")
    _tidy(final)
    replaced = final.with_name(f".{final.stem}.{os.getpid()}.replaced{final.suffix}")
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
    """Remove what writers of `final` that were killed have left beside it."""
    for leftover in final.parent.glob(f".{glob.escape(final.stem)}.*.writing{glob.escape(final.suffix)}"):
        writer = leftover.name.removesuffix(f".writing{final.suffix}").rpartition(".")[2]
        if writer.isdigit() and not _runs(int(writer)):
            _remove(leftover)


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
