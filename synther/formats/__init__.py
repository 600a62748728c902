"""Read and write rows in all storage formats, with one function `read` and one function `write`.

Each format has its own module and is registered as a `Format` in `FORMATS`. It is found by its name, by the suffix of a
file, or by the type of an object. The module of a format, and the libraries that it needs, are imported when the format
is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from synther.data.checks import check_kind
from synther.data.transitions import RowSource, Transitions
from synther.durable import writing_to
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import shipped
from synther.registry import Registry

__all__ = ["FORMATS", "Format", "read", "suffixes", "write"]

MINARI = "minari:"
"""Prefix of a source or target that is always a Minari id and not a path."""
_PICKLES = (".pkl", ".pickle")
"""Suffixes of pickles, which are never loaded."""
_MINARI_ID = re.compile(r"[\w-]+(/[\w-]+)*-v\d+")


@dataclass(frozen=True)
class Format:
    """A storage format: functions that read and write it, and which files or objects belong to it."""

    read: Callable[..., Transitions]
    """read(path) returns rows. The file exists. Raise `FormatError` if it is damaged: see `synther.formats.reading`."""
    write: Callable[[RowSource, Any], None] | None = None
    """write(rows, path). `rows.chunks(n)` yields parts of at most n rows. None: the format can only be read."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files, such as (".npz",). If empty, `read` and `write` get the argument of the caller unchanged,
    which can be an object other than a file."""
    accepts: Callable[[object], bool] | None = None
    """accepts(thing) returns whether an object in memory, such as a replay buffer, can be read and written."""
    renames: bool = False
    """Whether `read` accepts `rename`, a dict from keys of the file to fields."""
    folders: bool = False
    """Whether `read` also accepts a folder of such files."""
    whole_episodes: bool = False
    """Whether the format stores episodes. Generated rows cannot be written then, because they do not form episodes."""

    def __post_init__(self) -> None:
        if any(not suffix.startswith(".") or suffix != suffix.lower() for suffix in self.suffixes):
            raise ConfigError(f"suffixes must start with a dot and be lower case, got {self.suffixes}")


def _own(module: str, *suffixes: str, **options: Any) -> Format:
    """Return a format of this package. Its module is imported when the format is used."""

    def read(source: Any, **how: Any) -> Transitions:
        rows: Transitions = import_module(f"{__name__}.{module}").read(source, **how)
        return rows

    def write(rows: RowSource, target: Any) -> None:
        import_module(f"{__name__}.{module}").write(rows, target)

    return Format(read, write, suffixes, **options)


def _is_sb3_buffer(thing: object) -> bool:
    return any(base.__module__.startswith(("stable_baselines3", "sb3_contrib")) for base in type(thing).__mro__)


FORMATS: Registry[Format] = Registry(
    "format",
    "synther.formats",
    Format,
    {
        "npz": _own("npz", ".npz", renames=True),
        "d4rl": _own("d4rl", ".hdf5", ".h5", renames=True),
        "parquet": _own("parquet", ".parquet", ".pq", renames=True, folders=True),
        "minari": _own("minari", whole_episodes=True),
        "sb3": _own("sb3", accepts=_is_sb3_buffer),
    },
)
"""Storage formats by name. Other packages can add formats: see `Registry`. If two formats have the same suffix, the one
that was registered first is used."""


def suffixes() -> dict[str, str]:
    """Return all known suffixes, each with the name of its format."""
    found: dict[str, str] = {}
    for name, format in FORMATS.items():
        for suffix in format.suffixes:
            found.setdefault(suffix, name)
    return found


def read(
    source: Any,
    *,
    format: str | None = None,
    rename: Mapping[str, str | None] | None = None,
    actions: Literal["scaled", "raw"] | None = None,
) -> Transitions:
    """Read all rows of a file, a folder of Parquet files, a Minari data set (folder or installed id), or a replay
    buffer object of Stable-Baselines3.

    The format is chosen by the suffix, or by `format` (a name, or a suffix without its dot) if that is given.
    `hopper-sac` is shipped with the package. `minari:ID` is always a Minari id. `rename` is for files with other names
    than ours: it maps their keys to fields, as in {"my_obs": "observation"}, or to None to leave a key out. `actions`
    is for a replay buffer. It says whether the buffer holds Box actions "scaled" to [-1, 1], as Stable-Baselines3
    stores them, or "raw"; see `synther.formats.sb3`.
    """
    if not isinstance(source, (str, os.PathLike)):
        if rename:
            raise ConfigError("rename is only for files, a replay buffer has fixed names: remove rename")
        options = {} if actions is None else {"actions": actions}
        return FORMATS.get(format or _format_of_object(source)).read(source, **options)
    if actions is not None:
        raise ConfigError(
            f"actions={actions!r} is only for a Stable-Baselines3 replay buffer, not for {source}: remove it"
        )
    source, format = without_prefix(source, format)
    if source in shipped.names():
        source = shipped.path(os.fspath(source))
    name = _named(format) if format else _format_to_read(source)
    found = FORMATS.get(name)
    if rename and not found.renames:
        raise ConfigError(f"rename is not possible for the format {name}, which has fixed names: remove rename")
    if not found.suffixes:
        return found.read(source)
    path = Path(source).expanduser()
    if not path.exists():
        raise FormatError(f"{path}: no such file; check the path (the working folder is {Path.cwd()})")
    if path.is_dir() and not found.folders:
        raise FormatError(f"{path}: expected a {name} file, got a folder; a Minari folder is read with format='minari'")
    return found.read(path, rename=rename) if rename else found.read(path)


def rows_of(source: Any) -> Transitions:
    """Convert to rows: Transitions, a dict of arrays, a pandas DataFrame, or any source that `read` accepts."""
    if isinstance(source, Transitions):
        return source
    if hasattr(source, "keys"):
        return Transitions.of(source)
    if not isinstance(source, (str, os.PathLike)) and not _is_sb3_buffer(source):
        check_kind(source)
    return read(source)


def write(rows: RowSource, target: Any, *, format: str | None = None) -> None:
    """Write `rows`, chunk by chunk, to a file, a Minari id or a folder, or append them to a replay buffer object.

    `minari:ID` is always a Minari id. A file appears only when it is complete. It replaces an older file of its name.
    """
    if isinstance(rows, (str, os.PathLike)) and not isinstance(target, (str, os.PathLike)):
        raise DataError(
            f"write(rows, path) takes the rows first, got {type(rows).__name__} and {type(target).__name__}"
        )
    if not hasattr(rows, "chunks"):
        check_kind(rows)
    if not isinstance(target, (str, os.PathLike)):
        _writer(format or _format_of_object(target), target)(rows, target)
        return
    target, format = without_prefix(target, format)
    name = _named(format) if format else _format_to_write(target)
    write_rows = _writer(name, target)
    with writing_to(target):
        write_rows(rows, Path(target).expanduser() if FORMATS.get(name).suffixes else target)


def is_parquet_folder(path: Path) -> bool:
    """Return whether `path` is a folder of Parquet files, finished or not."""
    from synther.formats import parquet

    return parquet.is_folder(path)


def names_folder(target: str | os.PathLike[str]) -> bool:
    """Return whether `target` is a folder of files: it ends with a slash, has no suffix, or exists as a folder."""
    name = os.fspath(target)
    path = Path(name).expanduser()
    if name.startswith(MINARI):
        return False
    return name.endswith(("/", os.sep)) or path.is_dir() or not path.suffix


def check_rows_target(target: str | os.PathLike[str]) -> None:
    """Raise an error if generated rows cannot be written to `target`, before any work is done.

    Formats that store whole episodes cannot hold them.
    """
    name = _format_to_write(target)
    _writer(name, target)
    if FORMATS.get(name).whole_episodes:
        raise FormatError(
            f"{target}: generated rows do not form episodes; expected a name ending in {', '.join(suffixes())}"
        )


def without_prefix(
    place: str | os.PathLike[str], format: str | None = None
) -> tuple[str | os.PathLike[str], str | None]:
    """Return the id and the format if `place` is `minari:ID`, otherwise both arguments unchanged."""
    if not isinstance(place, str) or not place.startswith(MINARI):
        return place, format
    name = place.removeprefix(MINARI)
    if not is_minari_id(name):
        raise ConfigError(f"{name!r} is not a Minari id: expected {MINARI}NAMESPACE/NAME-v0")
    if Path(name).exists():
        raise ConfigError(f"{name} is also an existing path, which would be used instead: choose another id or folder")
    return name, "minari"


def is_minari_id(name: str) -> bool:
    """Return whether `name` has the form of a Minari id, NAMESPACE/NAME-vVERSION."""
    return _MINARI_ID.fullmatch(name) is not None


def _writer(name: str, target: Any) -> Callable[[RowSource, Any], None]:
    found = FORMATS.get(name).write
    if found is None:
        raise FormatError(f"{target}: the format {name} can only be read, not written; choose another one")
    return found


def _named(format: str) -> str:
    """Return the name of the format that `format` names, by its name or by a suffix without dot."""
    name = format if format in FORMATS else suffixes().get(f".{format.lower()}", format)
    FORMATS.check(name, "format")
    return name


def _format_of_object(thing: object) -> str:
    for name, format in FORMATS.items():
        if format.accepts is not None and format.accepts(thing):
            return name
    raise FormatError(
        f"expected a path, a Minari id or a Stable-Baselines3 replay buffer, got {type(thing).__name__}; "
        "convert arrays to rows with Transitions.of(...)"
    )


def _format_of_suffix(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise FormatError(
            f"{path}: pickles are never loaded or written, because loading a pickle runs any code in it; "
            "load a replay buffer with Stable-Baselines3 (model.load_replay_buffer) and pass the buffer object, "
            "or save the arrays as .npz"
        )
    return next((name for name, format in FORMATS.items() if suffix in format.suffixes), None)


def _format_to_read(source: str | os.PathLike[str]) -> str:
    if "://" in os.fspath(source):
        raise FormatError(f"{source} is a URL: download the file, and pass its path")
    path = Path(source).expanduser()
    if path.is_dir():
        _refuse_folder_of_files(path)
        return "parquet" if is_parquet_folder(path) else "minari"
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
        f"{path}: no such file or folder, and neither a Minari id (NAMESPACE/NAME-vVERSION) nor the name of a shipped "
        f"data set ({', '.join(shipped.names())}): check the path"
    )


def _refuse_folder_of_files(path: Path) -> None:
    """Raise an error for a folder that has data files other than Parquet directly in it, such as the OUT of
    `synther upsample`. The files of a Minari data set are in its folder `data`."""
    inside = sorted(file.name for file in path.iterdir() if file.suffix.lower() in (".npz", ".hdf5", ".h5"))
    if inside and not (path / "metadata.json").exists():
        raise FormatError(
            f"{path} is a folder: pass a file in it, such as {path / inside[0]}; in Python, "
            "Transitions.concatenate([read(file) for file in files]) joins several"
        )


def _format_to_write(target: str | os.PathLike[str]) -> str:
    path = Path(target).expanduser()
    name = _format_of_suffix(path)
    if name is not None:
        return name
    if path.suffix and not path.is_dir():
        raise _unknown_suffix(path, "choose one of them", "rows.to_pandas().to_csv(path) writes it")
    return "minari"


def _unknown_suffix(
    path: Path,
    how: str = "rename the file if it has one of these formats, or write(Transitions.of(arrays), 'rows.npz') in Python",
    csv: str = "write(Transitions.of(pandas.read_csv(path)), 'rows.npz') converts it",
) -> FormatError:
    got = f"suffix {path.suffix!r}" if path.suffix else "no suffix"
    if path.suffix.lower() == ".csv":
        how = f"in Python, {csv}"
    if path.suffix.lower() == ".safetensors":
        how = "this is a model or an agent: `synther sample` writes rows of a model"
    return FormatError(f"{path}: {got}, expected one of {', '.join(suffixes())}; {how}")
