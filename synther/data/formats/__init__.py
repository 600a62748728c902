"""Storage formats: one file each, found by name or suffix through one `read` and one `write`.

A format is a module of this package with `read(source) -> Transitions` and `write(target, rows)`, and a line in
`FORMATS`. It is imported when it is used, and so are the libraries behind it.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from synther.data import shipped
from synther.data.checks import check_kind
from synther.data.formats.writing import writing_to
from synther.data.transitions import RowSource, Transitions
from synther.errors import ConfigError, FormatError

__all__ = ["FORMATS", "read", "write"]

FORMATS: dict[str, tuple[str, ...]] = {
    "npz": (".npz",),
    "d4rl": (".hdf5", ".h5"),
    "parquet": (".parquet", ".pq"),
    "minari": (),
    "sb3": (),
}
"""Name of a format, which is the name of its module, to the suffixes that mean it."""

_FORMAT_OF_SUFFIX = {suffix: name for name, suffixes in FORMATS.items() for suffix in suffixes}
_PICKLES = (".pkl", ".pickle")
_MINARI_ID = re.compile(r"[\w-]+(/[\w-]+)*-v\d+")


class _Format(Protocol):
    def read(self, source: Any, **options: Any) -> Transitions: ...

    def write(self, target: Any, rows: RowSource) -> None: ...


def read(source: Any, *, format: str | None = None, actions: Literal["scaled", "raw"] | None = None) -> Transitions:
    """All rows of a file, a Minari data set (folder or installed id) or a Stable-Baselines3 replay buffer object.

    The format follows from the suffix; `format` (a name or a suffix without its dot) overrules it. `hopper-sac` ships
    with the package. `actions` is for a replay buffer, and says whether its Box actions are "scaled" to [-1, 1], as
    Stable-Baselines3 stores them, or "raw"; see `synther.data.formats.sb3`.
    """
    if not isinstance(source, (str, os.PathLike)):
        options = {} if actions is None else {"actions": actions}
        return _module(format or _format_of_object(source)).read(source, **options)
    if actions is not None:
        raise ConfigError(
            f"actions={actions!r} is for a Stable-Baselines3 replay buffer, {source} is none: leave it out"
        )
    if source in shipped.names():
        source = shipped.path(os.fspath(source))
    name = _named(format) if format else _format_to_read(source)
    if name in ("minari", "sb3"):
        return _module(name).read(source)
    path = Path(source).expanduser()
    if not path.exists():
        raise FormatError(f"{path}: no such file; check the path (the working folder is {Path.cwd()})")
    if path.is_dir():
        raise FormatError(f"{path}: expected a {name} file, got a folder; a Minari folder is read with format='minari'")
    return _module(name).read(path)


def write(target: Any, rows: RowSource, *, format: str | None = None) -> None:
    """Write `rows`, chunk by chunk, to a file, a Minari id or folder, or append them to a replay buffer object.

    A file appears whole or not at all, and replaces an older one of its name.
    """
    if not hasattr(rows, "chunks"):
        check_kind(rows)
    if not isinstance(target, (str, os.PathLike)):
        _module(format or _format_of_object(target)).write(target, rows)
        return
    name = _named(format) if format else _format_to_write(target)
    with writing_to(target):
        _module(name).write(target if name in ("minari", "sb3") else Path(target).expanduser(), rows)


def check_rows_target(target: str | os.PathLike[str]) -> None:
    """Refuse, before any work is done for it, a file name that cannot take rows without episodes."""
    if _format_to_write(target) == "minari":
        raise FormatError(
            f"{target}: generated rows form no episodes; expected a name ending in {', '.join(_FORMAT_OF_SUFFIX)}"
        )


def is_minari_id(name: str) -> bool:
    """Whether `name` has the form of a Minari id, NAMESPACE/NAME-vVERSION."""
    return _MINARI_ID.fullmatch(name) is not None


def _module(name: str) -> _Format:
    return cast(_Format, import_module(f"{__name__}.{_named(name)}"))


def _named(format: str) -> str:
    name = format if format in FORMATS else _FORMAT_OF_SUFFIX.get(f".{format.lower()}")
    if name is None:
        raise FormatError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    return name


def _format_of_object(thing: object) -> str:
    if any(base.__module__.startswith(("stable_baselines3", "sb3_contrib")) for base in type(thing).__mro__):
        return "sb3"
    raise FormatError(
        f"expected a path, a Minari id or a Stable-Baselines3 replay buffer, got {type(thing).__name__}; "
        "arrays in memory become rows with Transitions.of(...)"
    )


def _format_of_suffix(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise FormatError(
            f"{path}: pickles are never loaded or written, because loading one runs whatever code it holds; "
            "load a replay buffer with Stable-Baselines3 (model.load_replay_buffer) and pass the buffer object, "
            "or save the arrays as .npz"
        )
    return _FORMAT_OF_SUFFIX.get(suffix)


def _format_to_read(source: str | os.PathLike[str]) -> str:
    path = Path(source).expanduser()
    if path.is_dir():
        return "minari"
    name = _format_of_suffix(path)
    if name is not None:
        return name
    if path.exists():
        raise _unknown_suffix(path)
    if is_minari_id(os.fspath(source)):
        return "minari"
    if path.suffix:
        raise _unknown_suffix(path)
    raise FormatError(
        f"{path}: no such file or folder, no Minari id (NAMESPACE/NAME-vVERSION), nor {' or '.join(shipped.names())}"
    )


def _format_to_write(target: str | os.PathLike[str]) -> str:
    path = Path(target).expanduser()
    name = _format_of_suffix(path)
    if name is not None:
        return name
    if path.suffix and not path.is_dir():
        raise _unknown_suffix(path)
    return "minari"


def _unknown_suffix(path: Path) -> FormatError:
    suffixes = ", ".join(_FORMAT_OF_SUFFIX)
    got = f"suffix {path.suffix!r}" if path.suffix else "no suffix"
    return FormatError(
        f"{path}: {got}, expected one of {suffixes}; rename the file (in Python, `format=` overrules the suffix)"
    )
