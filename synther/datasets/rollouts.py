"""Data sets that are rolled out here, in the way D4RL's were: from recorded policies, or by walking through mazes.

Call rows of D4RL's own policies "regenerated with D4RL's policies", never "D4RL": the steps are others. In mazes, as in
D4RL, there is one goal, always the same but for noise within its cell, while the data is collected between random
cells. So the data has the rewards of the task that agents are evaluated in.
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
"""Name, in a file of policies, of the one that an ant follows: it walks to the goal of AntMaze's flat observation."""

D4RL_BODIES = {"capsules": "old"}
"""Options of the environments: bodies that weigh as D4RL's do. See `envs/bodies.py`."""

_ROWS = 1_000_000
"""Of each policy, and of an ant, as in D4RL."""
_MAZE_ROWS = {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}
"""Of maze2d, as in D4RL."""


@dataclass(frozen=True)
class RollOut:
    """How to make the data set of a task. It is made once and kept as a file, whose name is a hash of all of this."""

    task: Task
    policies: Path | None
    rows: int | None
    """None: as many as D4RL's data set has."""
    seed: int

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be made; None if it can."""
        needed = set(self._needed())
        if not needed:
            return None
        if self.task.level in REPLAYS:
            return "the experience of an agent in training cannot be rolled out from a policy"
        if self.policies is None:
            return f"rolling it out takes a file with {_listed(needed)} (--policies), and none was given"
        missing = needed - set(policies_of(self.policies))
        return f"{self.policies} does not hold {_listed(missing)}" if missing else None

    @property
    def origin(self) -> str:
        """Where the rows come from, for people."""
        what = "collected by going from cell to cell" if self.task.maze else "regenerated"
        by = f"the policies of {self.policies.name}" if self.policies is not None and self._needed() else ""
        return f"{what} with {by or ('a controller' if self.task.maze else 'uniform actions')}"

    def read(self, data: Path | None, progress: Progress | bool) -> Transitions:
        """Read the rows from their file, which is made first if it does not exist."""
        known: dict[str, Any] = {"name": self.task.name, "rows": self._count(), "seed": self.seed}
        known["synther"] = __version__  # another may collect in another way
        known["options"] = None if self.task.maze else D4RL_BODIES
        known["policies"] = digest_of(self.policies) if self.policies is not None and self._needed() else None
        file = _folder(data) / f"{self.task.name}.{key_of(known)}.npz"
        if file.exists():
            return formats.read(file)
        task, maze = self.task, self.task.maze
        if maze is None:
            env_id, options = ENV_IDS[task.env], D4RL_BODIES
            actors = actors_of(self.policies, task.env, task.level, env_id, options)
        else:
            reach: Policy = PointReacher()
            if self.policies is not None and self._needed():
                reach = read_policy(self.policies, *ANT_POLICY)
            env_id, options, actors = maze.env_id, maze.options(anywhere=True), [maze.wanderer(reach)]
        how: dict[str, Any] = {"options": options, "name": task.name, "seed": self.seed, "progress": progress}
        rows = record(env_id, actors, self._count(), **how)
        formats.write(rows, file)
        log.info("%s is kept as %s", self.task.name, file)
        return rows

    def _needed(self) -> list[str]:
        """The policies it is made with, as a file of them spells them."""
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
    return f"the {'policy' if len(names) == 1 else 'policies'} {' and '.join(sorted(names))}"


def _folder(data: Path | None) -> Path:
    """Where to keep what is made: the user's folder of data, `SYNTHER_CACHE`, or a folder in the user's cache.

    A folder that is marked read-only is not used, even if one could write there.
    """
    if data is not None and data.stat().st_mode & 0o200 and os.access(data, os.W_OK):
        return data
    own = os.environ.get("SYNTHER_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "synther"
