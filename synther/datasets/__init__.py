"""Read data sets by name.

A name is a path, `hopper-sac` (shipped with the package), an installed Minari id, a name of D4RL such as
`walker2d-medium-expert`, `maze2d-umaze` and `antmaze-large-play`, one of our own recordings such as `walker2d-mixed`,
or a registered data set. Some data sets of D4RL can be rolled out here. `read` explains where a name is searched.
"""

from __future__ import annotations

import difflib
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
from synther.data.transitions import Transitions
from synther.datasets import rollouts
from synther.datasets.tasks import ENV_IDS, EPISODES, Change, Task, canonical, tasks
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import minari, shipped
from synther.pixels.formats.hdf5 import is_of_frames
from synther.plain import check_least
from synther.progress import Progress
from synther.registry import Registry

__all__ = ["DATASETS", "Dataset", "NamedDataset", "Request", "is_known", "read"]

log = logging.getLogger(__name__)

D4RL, OTHERS = "D4RL", "mujoco"
"""Namespaces of Minari: D4RL's data, and data sets with the same names from other policies."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, the environment in which agents are evaluated, and settings of the algorithms for these rows."""

    name: str
    rows: Transitions
    env_id: str | None
    """Id of the environment in which agents are evaluated. None: unknown."""
    env_options: dict[str, Any]
    """Arguments for `gymnasium.make`."""
    agent: Mapping[str, Mapping[str, Any]]
    """For each algorithm, the options that differ from its defaults."""
    episodes: int = EPISODES
    """Number of episodes in each evaluation."""
    origin: str = ""
    """Where the rows come from, as text for people."""
    rewards: Mapping[str, Change] = field(default_factory=dict)
    """For each algorithm that needs changed rewards, how they are changed: see `rows_for`."""

    def rows_for(self, algorithm: str, rows: Transitions | None = None) -> Transitions:
        """Return rows with the rewards that the algorithm needs on this data set. By default these are all rows.

        `rows` can be other rows of the same kind, such as a part of the data set or synthetic rows. Their rewards are
        changed in the same way, which depends on all rows of the data set.
        """
        given = self.rows if rows is None else rows
        if algorithm not in self.rewards:
            return given
        factor, more = self.rewards[algorithm](self.rows)
        if more and "discount" in given.extra:
            raise DataError(
                f"{algorithm} adds {more:g} to every reward of this data set, which is wrong for n-step rows: expected "
                "rows of one step, got n-step rows"
            )
        return replace(given, reward=(given.reward.astype(np.float64) * factor + more).astype(given.reward.dtype))


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
            raise ConfigError(f"{self.data} is not a folder: expected the folder of your data sets")
        if self.policies is not None and not self.policies.is_file():
            raise ConfigError(f"{self.policies}: no such file; expected a file of policies (.npz)")
        check_least(self, rows=1, seed=0)


Found = tuple[Transitions, str]
"""Rows, and a phrase that says where they come from."""
Environment = tuple[str | None, dict[str, Any]]
"""Id of the environment in which agents are evaluated (None: unknown), and its options."""


@dataclass(frozen=True)
class NamedDataset:
    """An entry of `DATASETS`: how to load the rows, and the settings of `Dataset`."""

    load: Callable[[Request], Found]
    """Function that returns the rows and their origin."""
    environment: Callable[[Transitions], Environment] = lambda rows: (rows.env_id, rows.env_options or {})
    """Function of the rows that returns the environment in which agents are evaluated, and its options."""
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
    """Read the data set `name`. The first of these that exists is used:

    - a file or folder of Parquet files with this path, or with this name in the folder `data`. In `data`, the file
      names of D4RL are understood too;
    - a Minari data set: a folder, or the id of an installed data set;
    - the registered data set of this name (`DATASETS`). For a name of D4RL, these are tried in this order: the data set
      in Minari's namespace D4RL; rows that are rolled out here, with the file `policies` if they need policies; the
      data set in Minari's namespace mujoco, which comes from other policies.

    `rows` and `seed` are for data that is rolled out. By default it has as many rows as D4RL's data set. It is rolled
    out only once, and saved in `data` or in the user's cache.
    """
    request = Request(name, data, policies, rows, seed, progress)
    path = Path(name).expanduser()
    known_as = _known_as(path.stem if path.is_file() else name)
    named = NamedDataset(_unregistered) if known_as is None else DATASETS.get(known_as)
    load = _unregistered if "/" in name and name not in DATASETS else named.load
    found, origin = _file_or_minari(request) or load(request)
    log.info("%s: %s rows, %s", name, f"{len(found):,}", origin)
    env_id, options = named.environment(found)
    return Dataset(name, found, env_id, options, named.agent, named.episodes, origin, named.rewards)


def is_known(name: str) -> bool:
    """Return whether the name, or another spelling of it, is registered."""
    return _known_as(name) is not None


def _known_as(name: str) -> str | None:
    """Return the registered spelling of a name, or None if it is not registered."""
    return next((spelling for spelling in (name, canonical(name)) if spelling in DATASETS), None)


def _file_or_minari(request: Request) -> Found | None:
    """Read a file, a folder of Parquet files or a Minari data set with this name, or return None if there is none. In
    the folder `data`, file names of D4RL are understood too, such as `hopper_medium-v2.hdf5`. If several files fit, the
    exact name is preferred, then the newest version."""
    name, data, path = request.name, request.data, Path(request.name).expanduser()
    places = [path] if data is None else [path, data / path]
    file = next((place for place in places if place.is_file() or formats.is_parquet_folder(place)), None)
    if file is None and data is not None:
        wanted, suffixes = canonical(name), formats.suffixes()
        fits = [each for each in data.iterdir() if each.suffix.lower() in suffixes and canonical(each.stem) == wanted]
        file = min(fits, key=lambda each: (each.stem != name, -_version(each.stem), each.name), default=None)
    if file is not None:
        if is_of_frames(file):
            raise FormatError(f"{file} holds frames: expected rows; to train on frames, use `synther pixels train`")
        return formats.read(file), f"read from {file.name}"
    own: Path | str | None = next((place for place in places if minari.folder_in(place) is not None), None)
    if own is None and formats.is_minari_id(name):
        with suppress(ImportError):
            own = None if minari.folder_of(name) is None else name
    return None if own is None else (formats.read(own, format="minari"), f"read from {name}")


def _unregistered(request: Request) -> Found:
    """Read a name that is not registered. If it looks like a path or a Minari id, reading raises a precise error."""
    name = request.name
    if "/" in name or Path(name).exists() or Path(name).suffix or formats.is_minari_id(name):
        return formats.read(name), f"read from {name}"
    known = DATASETS.names()
    near = ", ".join(difflib.get_close_matches(name, known))
    hint = f"did you mean {near}?" if near else f"expected a file, or one of {', '.join(known)}"
    raise FormatError(f"no data set {name!r}, and no file of this name{_place(request.data)}: {hint}")


def _task_rows(task: Task, request: Request) -> Found:
    """Read a data set with a name of D4RL: installed from Minari, or rolled out here."""
    installed = _installed(task.minari(D4RL))
    if installed is None:
        roll_out = rollouts.RollOut(task, request.policies, request.rows, request.seed)
        obstacle = roll_out.obstacle
        if obstacle is None:
            return roll_out.read(request.data, request.progress), roll_out.origin
        installed = _installed(task.minari(OTHERS))
        if installed is None:
            ids = " or ".join(f"{task.minari(space)}-v*" for space in ([D4RL] if task.maze else [D4RL, OTHERS]))
            missing = f"no file of this name{_place(request.data)}, no Minari data set {ids} installed, and {obstacle}"
            advice = f"{'download it with Minari, or ' if task.maze else ''}pass the folder of its file with --data"
            raise FormatError(f"data set {task.name!r} not found: {missing}; {advice}")
    return formats.read(installed, format="minari"), f"read from Minari's {installed}"


def _installed(dataset: str) -> str | None:
    """Return the id of the newest installed version of a Minari data set. None if it or Minari is not installed."""
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
    """Return the version at the end of a name (2 for `-v2`), or -1 if there is none."""
    found = re.search(r"-v(\d+)$", name)
    return int(found[1]) if found else -1


def _environment(task: Task, rows: Transitions) -> Environment:
    """Return the environment that the data names, or else the successor of D4RL's simulator."""
    if rows.env_id is not None and not task.is_of(rows.env_id):
        raise DataError(f"{task.name} is a name of D4RL, but these rows are from {rows.env_id}: rename the file")
    maze = task.maze
    if maze is None:
        return rows.env_id or ENV_IDS[task.env], rows.env_options or {}
    if rows.env_id is None and (columns := rows.observation.shape[1]) != maze.columns:
        facts = task.name, columns, maze.env_id, maze.columns
        log.warning("%s has %d columns, but %s has %d, in other coordinates: agents cannot be evaluated", *facts)
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
"""Data sets by name. Other packages can add data sets: see `Registry`. A file with the same name is preferred."""
