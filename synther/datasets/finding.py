"""Where the rows of a data set are: in a file, in the package, among Minari's, or nowhere until they are made."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from synther.data import formats
from synther.data.formats import minari
from synther.data.transitions import Transitions
from synther.datasets.made import Recipe, folder_for
from synther.datasets.names import Task, canonical
from synther.errors import ConfigError, FormatError
from synther.pixels.formats.hdf5 import is_of_frames
from synther.progress import Progress

D4RL, OTHERS = "D4RL", "mujoco"
"""Minari's namespaces: D4RL's data, and data of the same names that comes from other policies."""


@dataclass(frozen=True)
class Request:
    """What was asked for: the arguments of `synther.datasets.read`."""

    name: str
    data: Path | None = None
    policies: Path | None = None
    rows: int | None = None
    seed: int = 0
    progress: Progress | bool = False

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_dir():
            raise ConfigError(f"{self.data} is not a folder: expected the one that holds your data sets")
        if self.policies is not None and not self.policies.is_file():
            raise ConfigError(f"{self.policies}: no such file; expected an archive of policies (.npz)")
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"rows must be at least 1, got {self.rows}")
        if self.seed < 0:
            raise ConfigError(f"the seed must be 0 or more, got {self.seed}")


Load = Callable[[Request], tuple[Transitions, str]]
"""From a request to rows and where they come from, for people."""


def find(request: Request) -> tuple[Transitions, str] | None:
    """The rows of a file or a Minari data set called so; None where there is neither."""
    name, data = request.name, request.data
    file = file_of(name, data)
    if file is not None:
        if is_of_frames(file):
            raise FormatError(f"{file} holds frames: expected rows; pixel agents learn by `synther pixels train`")
        return formats.read(file), f"read from {file.name}"
    own = _minari_of(name, data)
    return None if own is None else (formats.read(own, format="minari"), f"read from {name}")


def shipped(request: Request) -> tuple[Transitions, str]:
    """A data set that ships with the package."""
    return formats.read(request.name), "shipped with the package"


def find_task(task: Task, request: Request) -> tuple[Transitions, str]:
    """A data set of D4RL's name: installed from Minari, or rolled out here."""
    theirs = installed(task.minari(D4RL))
    if theirs is None:
        recipe = Recipe(task, request.policies, request.rows, request.seed)
        obstacle = recipe.obstacle
        if obstacle is None:
            return recipe.rows_in(folder_for(request.data), request.progress), recipe.origin
        theirs = installed(task.minari(OTHERS))
        if theirs is None:
            raise _absent(recipe, obstacle, request.data)
    return formats.read(theirs, format="minari"), f"read from Minari's {theirs}"


def find_elsewhere(request: Request, known: list[str]) -> tuple[Transitions, str]:
    """A name that is not registered: perhaps a path or a Minari id, which says what is missing."""
    name = request.name
    if "/" in name or Path(name).exists() or Path(name).suffix or formats.is_minari_id(name):
        return formats.read(name), f"read from {name}"
    raise FormatError(
        f"no data set called {name!r}: there is no file of that name{_place(request.data)}, and it is not one of the "
        f"known names: {', '.join(known)}"
    )


def file_of(name: str, data: Path | None) -> Path | None:
    """The file of that path, or of that name in the folder `data`, whatever its format.

    In the folder D4RL's spelling is understood too, `hopper_medium-v2.hdf5`; the very name goes before it, and a newer
    version before an older one.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if data is None:
        return None
    if (data / path).is_file():
        return data / path
    wanted, suffixes = canonical(name), formats.suffixes()
    fits = [file for file in data.iterdir() if file.suffix.lower() in suffixes and canonical(file.stem) == wanted]
    return min(fits, key=lambda file: (file.stem != name, -_version(file.stem), file.name), default=None)


def _minari_of(name: str, data: Path | None) -> Path | str | None:
    """A Minari data set that is there under exactly that name: a folder, also in the folder `data`, or installed."""
    path = Path(name).expanduser()
    for place in [path] if data is None else [path, data / path]:
        if minari.folder_in(place) is not None:
            return place
    if formats.is_minari_id(name):
        with suppress(ImportError):
            return None if minari.folder_of(name) is None else name
    return None


def installed(dataset: str) -> str | None:
    """The newest installed version of a Minari data set, as its whole id; None where there is none, or no Minari."""
    try:
        from minari.storage import get_dataset_path
    except ImportError:
        return None
    place = Path(get_dataset_path()) / dataset
    versions = [folder.name for folder in place.parent.glob(f"{place.name}-v*") if (folder / "data").is_dir()]
    numbered = [version for version in versions if re.fullmatch(rf"{re.escape(place.name)}-v\d+", version)]
    return f"{dataset.rpartition('/')[0]}/{max(numbered, key=_version)}" if numbered else None


def _absent(recipe: Recipe, obstacle: str, data: Path | None) -> FormatError:
    task = recipe.task
    ids = [task.minari(D4RL)] + ([] if task.is_maze else [task.minari(OTHERS)])
    return FormatError(
        f"no data set {task.name!r} here: no file of that name{_place(data)}, no Minari data set "
        f"{' or '.join(f'{one}-v*' for one in ids)} installed, and {obstacle}; "
        f"{'fetch it with Minari, or ' if task.is_maze else ''}put its file into a folder and name that with --data"
    )


def _place(data: Path | None) -> str:
    return "" if data is None else f" in {data}"


def _version(name: str) -> int:
    found = re.search(r"-v(\d+)$", name)
    return int(found[1]) if found else -1
