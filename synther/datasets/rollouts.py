"""Roll out data sets in the same way as D4RL: with saved policies, or by walking through mazes.

Rows from D4RL's own policies must be called "regenerated with D4RL's policies", never "D4RL", because the steps are not
the same. In mazes there is one goal, as in D4RL. It is always the same, except for noise within its cell. The data is
collected by walking between random cells. So the data has the rewards of the task in which agents are evaluated.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther import __version__, formats
from synther.data.transitions import Transitions
from synther.datasets.tasks import ENV_IDS, REPLAYS, Task
from synther.envs.mazes import PointReacher
from synther.envs.policies import Policy, policies_of, read_policy
from synther.envs.recording import CHANCE, actors_of, parts_of, record
from synther.folder import digest_of, key_of
from synther.progress import Progress

log = logging.getLogger(__name__)

ANT_POLICY = "ant", "goal"
"""Name of the ant's policy in a file of policies. It walks to the goal in AntMaze's flat observation."""

D4RL_BODIES = {"capsules": "old"}
"""Options of the environments. With them, bodies have the same masses as in D4RL. See `envs/bodies.py`."""

_ROWS = 1_000_000
"""Number of rows from each policy, and of each antmaze data set, as in D4RL."""
_MAZE_ROWS = {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}
"""Number of rows of each maze2d data set, as in D4RL."""


@dataclass(frozen=True)
class RollOut:
    """How to roll out the data set of a task. It is rolled out once and saved. The name of the file contains a hash of
    all options."""

    task: Task
    policies: Path | None
    rows: int | None
    """Number of rows. None: as many as D4RL's data set has."""
    seed: int

    @property
    def obstacle(self) -> str | None:
        """The reason why the data set cannot be rolled out, or None if it can."""
        needed = set(self._needed())
        if not needed:
            return None
        if self.task.level in REPLAYS:
            return "it cannot be rolled out, because it is the experience of an agent during its training"
        if self.policies is None:
            return f"it cannot be rolled out without a file that contains {_listed(needed)} (--policies)"
        missing = needed - set(policies_of(self.policies))
        return f"{self.policies} does not contain {_listed(missing)}" if missing else None

    @property
    def origin(self) -> str:
        """Where the rows come from, as text for people."""
        what = "collected by going from cell to cell" if self.task.maze else "regenerated"
        by = f"the policies of {self.policies.name}" if self.policies is not None and self._needed() else ""
        return f"{what} with {by or ('a controller' if self.task.maze else 'uniform actions')}"

    def read(self, data: Path | None, progress: Progress | bool) -> Transitions:
        """Read the rows from their file. It is written first if it does not exist."""
        known: dict[str, Any] = {"name": self.task.name, "rows": self._count(), "seed": self.seed}
        known["synther"] = __version__  # another version may collect in another way
        known["options"] = None if self.task.maze else D4RL_BODIES
        used = self.policies if self._needed() else None
        known["policies"] = None if used is None else digest_of(used)
        file = _folder(data) / f"{self.task.name}.{key_of(known)}.npz"
        if file.exists():
            return formats.read(file)
        task, maze = self.task, self.task.maze
        if maze is None:
            env_id, options = ENV_IDS[task.env], D4RL_BODIES
            actors = actors_of(self.policies, task.env, task.level, env_id, options)
        else:
            reach: Policy = PointReacher() if used is None else read_policy(used, *ANT_POLICY)
            env_id, options, actors = maze.env_id, maze.options(anywhere=True), [maze.wanderer(reach)]
        rows = record(env_id, actors, self._count(), options=options, name=task.name, seed=self.seed, progress=progress)
        formats.write(rows, file)
        log.info("%s is saved as %s", self.task.name, file)
        return rows

    def _needed(self) -> list[str]:
        """Return the names of the policies that the roll-out needs, as they are spelled in a file of policies."""
        if self.task.env == "antmaze":
            return ["/".join(ANT_POLICY)]
        return [] if self.task.maze else [f"{self.task.env}/{part}" for part in self._parts() if part != CHANCE]

    def _parts(self) -> list[str]:
        return parts_of(self.policies, self.task.env, self.task.level)

    def _count(self) -> int:
        if self.rows is not None:
            return self.rows
        if self.task.env == "maze2d":
            return _MAZE_ROWS[self.task.level]
        return _ROWS if self.task.maze else _ROWS * len(self._parts())


def _listed(names: set[str]) -> str:
    """Return names of policies as text, such as "the policies a and b"."""
    return f"the {'policy' if len(names) == 1 else 'policies'} {' and '.join(sorted(names))}"


def _folder(data: Path | None) -> Path:
    """Return the folder for new data sets: the folder `data`, or `SYNTHER_CACHE`, or a folder in the user's cache.
    `data` is not used if it is marked read-only, even if this process has the rights to write there."""
    if data is not None and data.stat().st_mode & 0o200 and os.access(data, os.W_OK):
        return data
    own = os.environ.get("SYNTHER_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "synther"
