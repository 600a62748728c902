"""Data sets by name: files, what ships with the package, Minari's, what can be rolled out here, and registered ones.

A name is a path, `hopper-sac`, an installed Minari id, or one of D4RL's such as `walker2d-medium-expert`,
`maze2d-umaze` and `antmaze-large-play`; our own recordings are called `walker2d-mixed` and so on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from synther.data import shipped
from synther.data.transitions import Transitions
from synther.datasets import finding, mazes, settings
from synther.datasets.finding import Load, Request
from synther.datasets.names import Task, canonical, known, task_of
from synther.datasets.regenerated import ENV_IDS
from synther.errors import DataError
from synther.progress import Progress
from synther.registry import Registry

__all__ = ["DATASETS", "Dataset", "NamedDataset", "Request", "is_known", "read"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, where they are evaluated, and what the algorithms do otherwise on them."""

    name: str
    rows: Transitions
    env_id: str | None
    """The environment that agents are evaluated in, if one is known."""
    env_options: dict[str, Any]
    """For `gymnasium.make`."""
    agent: dict[str, dict[str, Any]]
    """For each algorithm, what its config has instead of its defaults."""
    episodes: int = settings.EPISODES
    """Of every evaluation."""
    origin: str = ""
    """Where the rows come from, for people."""
    rewards: Mapping[str, settings.Change] = field(default_factory=dict)
    """For each algorithm that wants other rewards, how they are changed: see `rows_for`."""

    def rows_for(self, algorithm: str, rows: Transitions | None = None) -> Transitions:
        """All rows, with rewards as the algorithm wants them on this data set.

        `rows` are others of the same kind, such as a part of them or synthetic ones: their rewards are changed in the
        same way, as all rows of the data set demand it.
        """
        given = self.rows if rows is None else rows
        if algorithm not in self.rewards:
            return given
        factor, more = self.rewards[algorithm](self.rows)
        changed = given.reward.astype(np.float64) * factor + more
        return replace(given, reward=changed.astype(given.reward.dtype))


def _as_the_rows_say(rows: Transitions) -> tuple[str | None, dict[str, Any]]:
    return rows.env_id, rows.env_options or {}


@dataclass(frozen=True)
class NamedDataset:
    """What is registered in `DATASETS`: how to get the rows, and how agents are trained and evaluated on them."""

    load: Load
    """From a `Request` to the rows and one phrase that says where they come from."""
    environment: Callable[[Transitions], tuple[str | None, dict[str, Any]]] = _as_the_rows_say
    """From the rows to the environment that agents are evaluated in, and its options."""
    agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each algorithm, what its config has instead of its defaults."""
    episodes: int = settings.EPISODES
    """Of every evaluation."""
    rewards: Mapping[str, settings.Change] = field(default_factory=dict)
    """For each algorithm that wants other rewards, how they are changed."""


def _environment(task: Task, rows: Transitions) -> tuple[str | None, dict[str, Any]]:
    """Where agents are evaluated: as the data says, or in the heir of D4RL's simulator."""
    if rows.env_id is not None and not task.is_of(rows.env_id):
        raise DataError(
            f"{task.name} is a name of D4RL's, and these rows are of {rows.env_id}: call their file otherwise, or its "
            "scores would stand for another task"
        )
    if not task.is_maze:
        return rows.env_id or ENV_IDS[task.env], rows.env_options or {}
    columns = rows.observation.shape[1]
    if rows.env_id is None and columns != mazes.COLUMNS[task.env]:
        log.warning(
            "%s: %d observation columns, where %s has %d: D4RL's own files of mazes are in other coordinates, so "
            "agents cannot be evaluated there",
            task.name,
            columns,
            mazes.env_id(task),
            mazes.COLUMNS[task.env],
        )
        return None, {}
    return rows.env_id or mazes.env_id(task), mazes.env_options(task)


def _d4rl(name: str) -> NamedDataset:
    task = task_of(name)
    assert task is not None
    return NamedDataset(
        partial(finding.find_task, task),
        partial(_environment, task),
        settings.agent(task),
        settings.episodes(task),
        settings.rewards(task),
    )


DATASETS: Registry[NamedDataset] = Registry(
    "data set",
    "synther.datasets",
    NamedDataset,
    {**{name: NamedDataset(finding.shipped) for name in shipped.names()}, **{name: _d4rl(name) for name in known()}},
)
"""Data sets by name. Others can be registered here, or installed: see `Registry`. A file of the same name is used
instead, where there is one."""


def read(
    name: str,
    *,
    data: Path | None = None,
    policies: Path | None = None,
    seed: int = 0,
    rows: int | None = None,
    progress: Progress | bool = False,
) -> Dataset:
    """The data set `name`: the first that is there of

    - a file of that path, or of that name in the folder `data`, where D4RL's file names are understood too;
    - a Minari data set: a folder, or an installed one by its id;
    - the registered data set of that name (`DATASETS`). For a name of D4RL's these are, in this order: the one in
      Minari's namespace D4RL; what can be rolled out here, with a file of `policies` where that takes some; and the one
      in Minari's namespace mujoco, which comes from other policies.

    `rows` and `seed` are for what is rolled out; without `rows`, it has as many as D4RL's. That is done once, and kept
    in `data` or in the user's cache. Whatever else is found is read as it is.
    """
    request = Request(name, data, policies, rows, seed, progress)
    path = Path(name).expanduser()
    known_as = _known_as(path.stem if path.is_file() else name)
    named = None if known_as is None else DATASETS.get(known_as)
    there = finding.find(request)
    if there is not None:
        found, origin = there
    elif named is None or ("/" in name and name not in DATASETS):
        found, origin = finding.find_elsewhere(request, DATASETS.names())
    else:
        found, origin = named.load(request)
    log.info("%s: %s rows, %s", name, f"{len(found):,}", origin)
    if named is None:
        return Dataset(name, found, found.env_id, found.env_options or {}, {}, origin=origin)
    env_id, options = named.environment(found)
    how: dict[str, Any] = {"episodes": named.episodes, "rewards": named.rewards, "origin": origin}
    return Dataset(name, found, env_id, options, {key: dict(value) for key, value in named.agent.items()}, **how)


def is_known(name: str) -> bool:
    """Whether the name, or another spelling of it, is registered."""
    return _known_as(name) is not None


def _known_as(name: str) -> str | None:
    return next((spelling for spelling in (name, canonical(name)) if spelling in DATASETS), None)
