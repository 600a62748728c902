"""Data sets by name: files, what ships with the package, Minari's, and what can be rolled out here.

A name is a path, `hopper-sac`, an installed Minari id, or one of D4RL's such as `walker2d-medium-expert`,
`maze2d-umaze` and `antmaze-large-play`; our own recordings are called `walker2d-mixed` and so on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from synther.data.transitions import Transitions
from synther.datasets import mazes, settings
from synther.datasets.finding import find
from synther.datasets.made import Recipe
from synther.datasets.names import Task, task_of
from synther.datasets.regenerated import ENV_IDS
from synther.errors import ConfigError, DataError
from synther.progress import Progress

__all__ = ["Dataset", "read", "task_of"]

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
    - what ships with the package;
    - a data set of Minari's: a folder, or an installed one by its id, or by its name in the namespace D4RL;
    - what can be rolled out here, with a file of `policies` where that takes some;
    - one of that name in Minari's namespace mujoco, which comes from other policies.

    `rows` and `seed` are for what is rolled out; without `rows`, it has as many as D4RL's. That is done once, and kept
    in `data` or in the user's cache. Whatever else is found is read as it is.
    """
    if data is not None and not data.is_dir():
        raise ConfigError(f"{data} is not a folder: expected the one that holds your data sets")
    if policies is not None and not policies.is_file():
        raise ConfigError(f"{policies}: no such file; expected an archive of policies (.npz)")
    path = Path(name).expanduser()
    task = task_of(path.stem if path.is_file() else name)
    found, origin = find(name, None if task is None else Recipe(task, policies, rows, seed), data, progress)
    log.info("%s: %s rows, %s", name, f"{len(found):,}", origin)
    if task is None:
        return Dataset(name, found, found.env_id, found.env_options or {}, {}, origin=origin)
    env_id, options = _environment(task, found)
    return Dataset(
        name,
        found,
        env_id,
        options,
        settings.agent(task),
        episodes=settings.episodes(task),
        origin=origin,
        rewards=settings.rewards(task),
    )


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
