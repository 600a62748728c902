"""Data sets by name: files, data shipped with the package, Minari's, data that can be rolled out here, registered ones.

A name is a path, `hopper-sac`, an installed Minari id, or one of D4RL's such as `walker2d-medium-expert`,
`maze2d-umaze` and `antmaze-large-play`; our own recordings are called `walker2d-mixed` and so on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from synther import formats
from synther.data import shipped
from synther.data.transitions import Transitions
from synther.datasets import rollouts
from synther.datasets.tasks import ENV_IDS, EPISODES, Change, Task, canonical, tasks
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import minari
from synther.pixels.formats.hdf5 import is_of_frames
from synther.plain import check_least
from synther.progress import Progress
from synther.registry import Registry

__all__ = ["DATASETS", "Dataset", "NamedDataset", "Request", "is_known", "read"]

log = logging.getLogger(__name__)

D4RL, OTHERS = "D4RL", "mujoco"
"""Minari's namespaces: D4RL's data, and data of the same names that comes from other policies."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, the environment that agents are evaluated in, and the settings of the algorithms on these rows."""

    name: str
    rows: Transitions
    env_id: str | None
    """None: unknown."""
    env_options: dict[str, Any]
    """For `gymnasium.make`."""
    agent: Mapping[str, Mapping[str, Any]]
    """For each algorithm, the options that are not its defaults."""
    episodes: int = EPISODES
    """Of every evaluation."""
    origin: str = ""
    """Where the rows come from, for people."""
    rewards: Mapping[str, Change] = field(default_factory=dict)
    """For each algorithm that wants other rewards, how they are changed: see `rows_for`."""

    def rows_for(self, algorithm: str, rows: Transitions | None = None) -> Transitions:
        """All rows, with rewards as the algorithm wants them on this data set.

        `rows` are others of the same kind, such as a part of them or synthetic ones. Their rewards are changed in the
        same way, which depends on all rows of the data set.
        """
        given = self.rows if rows is None else rows
        if algorithm not in self.rewards:
            return given
        factor, more = self.rewards[algorithm](self.rows)
        if more and "discount" in given.extra:
            raise DataError(f"{algorithm} adds {more:g} to every reward: expected rows of one step, got n-step rows")
        changed = given.reward.astype(np.float64) * factor + more
        return replace(given, reward=changed.astype(given.reward.dtype))


@dataclass(frozen=True)
class Request:
    """The arguments of `read`."""

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
        check_least(self, rows=1, seed=0)


Found = tuple[Transitions, str]
"""Rows, and one phrase that says where they come from."""


@dataclass(frozen=True)
class NamedDataset:
    """What is registered in `DATASETS`: how to get the rows; see `Dataset` for the settings."""

    load: Callable[[Request], Found]
    environment: Callable[[Transitions], tuple[str | None, dict[str, Any]]] = lambda rows: (
        rows.env_id,
        rows.env_options or {},
    )
    """From the rows to the environment that agents are evaluated in, and its options."""
    agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    episodes: int = EPISODES
    rewards: Mapping[str, Change] = field(default_factory=dict)


def read(
    name: str,
    *,
    data: Path | None = None,
    policies: Path | None = None,
    seed: int = 0,
    rows: int | None = None,
    progress: Progress | bool = False,
) -> Dataset:
    """Read the data set `name`, the first of these that exists:

    - a file of that path, or of that name in the folder `data`, where D4RL's file names are understood too; or a
      folder of Parquet files;
    - a Minari data set: a folder, or an installed one by its id;
    - the registered data set of that name (`DATASETS`). For a name of D4RL's these are, in this order: the one in
      Minari's namespace D4RL; rows that are rolled out here, with the file `policies` if they need one; and the one in
      Minari's namespace mujoco, which comes from other policies.

    `rows` and `seed` are for data that is rolled out. Default: as many rows as D4RL's. It is rolled out once, and kept
    in `data` or in the user's cache.
    """
    request = Request(name, data, policies, rows, seed, progress)
    path = Path(name).expanduser()
    known_as = _known_as(path.stem if path.is_file() else name)
    named = None if known_as is None else DATASETS.get(known_as)
    there = _file_or_minari(request)
    if there is not None:
        found, origin = there
    elif named is None or ("/" in name and name not in DATASETS):
        found, origin = _unregistered(request)
    else:
        found, origin = named.load(request)
    log.info("%s: %s rows, %s", name, f"{len(found):,}", origin)
    named = named or NamedDataset(_unregistered)
    env_id, options = named.environment(found)
    return Dataset(name, found, env_id, options, named.agent, named.episodes, origin, named.rewards)


def is_known(name: str) -> bool:
    """Whether the name, or another spelling of it, is registered."""
    return _known_as(name) is not None


def _known_as(name: str) -> str | None:
    return next((spelling for spelling in (name, canonical(name)) if spelling in DATASETS), None)


def _file_or_minari(request: Request) -> Found | None:
    """The rows of a file or a Minari data set of exactly that name; None if there is neither."""
    name, data = request.name, request.data
    file = _file(name, data)
    if file is not None:
        if is_of_frames(file):
            raise FormatError(f"{file} holds frames: expected rows; pixel agents learn by `synther pixels train`")
        return formats.read(file), f"read from {file.name}"
    path = Path(name).expanduser()
    places = [path] if data is None else [path, data / path]
    own: Path | str | None = next((place for place in places if minari.folder_in(place) is not None), None)
    if own is None and formats.is_minari_id(name):
        with suppress(ImportError):
            own = None if minari.folder_of(name) is None else name
    return None if own is None else (formats.read(own, format="minari"), f"read from {name}")


def _file(name: str, data: Path | None) -> Path | None:
    """The file of that path, or of that name in the folder `data`, in any format; or a folder of Parquet files.

    D4RL's file names are understood in the folder: `hopper_medium-v2.hdf5`. The exact name is preferred, then the
    newest version.
    """
    path = Path(name).expanduser()
    for place in (path,) if data is None else (path, data / path):
        if place.is_file() or formats.is_parquet_folder(place):
            return place
    if data is None:
        return None
    wanted, suffixes = canonical(name), formats.suffixes()
    fits = [file for file in data.iterdir() if file.suffix.lower() in suffixes and canonical(file.stem) == wanted]
    return min(fits, key=lambda file: (file.stem != name, -_version(file.stem), file.name), default=None)


def _unregistered(request: Request) -> Found:
    """A name that may be a path or a Minari id; reading it says what is missing."""
    name = request.name
    if "/" in name or Path(name).exists() or Path(name).suffix or formats.is_minari_id(name):
        return formats.read(name), f"read from {name}"
    known = ", ".join(DATASETS.names())
    raise FormatError(f"no data set called {name!r}: no file of that name{_place(request.data)}, and none of {known}")


def _task_rows(task: Task, request: Request) -> Found:
    """A data set of D4RL's name: installed from Minari, or rolled out here."""
    installed = _installed(task.minari(D4RL))
    if installed is None:
        roll_out = rollouts.RollOut(task, request.policies, request.rows, request.seed)
        obstacle = roll_out.obstacle
        if obstacle is None:
            return roll_out.read(request.data, request.progress), roll_out.origin
        installed = _installed(task.minari(OTHERS))
        if installed is None:
            there = [task.minari(D4RL)] + ([] if task.maze else [task.minari(OTHERS)])
            ids = " or ".join(f"{one}-v*" for one in there)
            missing = f"no file of that name{_place(request.data)}, no Minari data set {ids} installed, and {obstacle}"
            advice = f"{'download it with Minari, or ' if task.maze else ''}name the folder of its file with --data"
            raise FormatError(f"no data set {task.name!r} here: {missing}; {advice}")
    return formats.read(installed, format="minari"), f"read from Minari's {installed}"


def _installed(dataset: str) -> str | None:
    """The id of the newest installed version of a Minari data set; None without one, or without Minari."""
    try:
        from minari.storage import get_dataset_path
    except ImportError:
        return None
    place = Path(get_dataset_path()) / dataset
    versions = [folder.name for folder in place.parent.glob(f"{place.name}-v*") if (folder / "data").is_dir()]
    numbered = [version for version in versions if re.fullmatch(rf"{re.escape(place.name)}-v\d+", version)]
    return f"{dataset.rpartition('/')[0]}/{max(numbered, key=_version)}" if numbered else None


def _place(data: Path | None) -> str:
    return "" if data is None else f" in {data}"


def _version(name: str) -> int:
    found = re.search(r"-v(\d+)$", name)
    return int(found[1]) if found else -1


def _environment(task: Task, rows: Transitions) -> tuple[str | None, dict[str, Any]]:
    """Where agents are evaluated: as the data says, or in the successor of D4RL's simulator."""
    if rows.env_id is not None and not task.is_of(rows.env_id):
        raise DataError(f"{task.name} is a name of D4RL's, but these rows are of {rows.env_id}: rename the file")
    maze = task.maze
    if maze is None:
        return rows.env_id or ENV_IDS[task.env], rows.env_options or {}
    if rows.env_id is None and (columns := rows.observation.shape[1]) != maze.columns:
        told = task.name, columns, maze.env_id, maze.columns
        log.warning("%s has %d columns and %s has %d, in other coordinates: agents cannot be evaluated", *told)
        return None, {}
    return rows.env_id or maze.env_id, maze.options()


_SHIPPED = NamedDataset(lambda request: (formats.read(request.name), "shipped with the package"))
_TASKS = {
    task.name: NamedDataset(
        partial(_task_rows, task), partial(_environment, task), task.agent, task.episodes, task.rewards
    )
    for task in tasks()
}
DATASETS: Registry[NamedDataset] = Registry(
    "data set", "synther.datasets", NamedDataset, dict.fromkeys(shipped.names(), _SHIPPED) | _TASKS
)
"""Data sets by name. Others can be registered here, or installed: see `Registry`. A file of the same name is used
instead, if there is one."""
