"""Data sets that are made here, once: rolled out, and kept as a file under a name that says what they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther import __version__
from synther.data import formats
from synther.data.transitions import Transitions
from synther.datasets import mazes
from synther.datasets.names import REPLAYS, Task
from synther.datasets.regenerated import CHANCE, parts_of, regenerated
from synther.envs.mazes import PointReacher
from synther.envs.policies import Policy, policies_of, read_policy
from synther.folder import digest_of
from synther.progress import Progress

log = logging.getLogger(__name__)

_ROWS = 1_000_000
"""Of each policy, as in D4RL."""


@dataclass(frozen=True)
class Recipe:
    """How to make a data set, of so many rows where that is said."""

    task: Task
    policies: Path | None
    rows: int | None
    seed: int

    @property
    def obstacle(self) -> str | None:
        """What is in the way, in words; None where nothing is."""
        needed = set(self._needed())
        if not needed:
            return None
        if self.task.level in REPLAYS:
            return "what an agent met while it learned cannot be rolled out from a policy"
        if self.policies is None:
            return f"rolling it out takes a file with {_listed(needed)} (--policies), and none was given"
        lacking = needed - set(policies_of(self.policies))
        return f"{self.policies} does not hold {_listed(lacking)}" if lacking else None

    @property
    def origin(self) -> str:
        """Where the rows come from, for people."""
        what = "collected by going from cell to cell" if self.task.is_maze else "regenerated"
        by = f"the policies of {self.policies.name}" if self.policies is not None and self._needed() else ""
        return f"{what} with {by or ('a controller' if self.task.is_maze else 'uniform actions')}"

    def rows_in(self, folder: Path, progress: Progress | bool) -> Transitions:
        """From the file in `folder`, which is made first if it is not there."""
        file = folder / f"{self.task.name}.{self._digest()}.npz"
        if not file.exists():
            rows = self._roll_out(progress)
            formats.write(rows, file)
            log.info("%s is kept as %s", self.task.name, file)
            return rows
        return formats.read(file)

    def _needed(self) -> list[str]:
        """The policies it is made with, as a file of them spells them."""
        if self.task.env == "antmaze":
            return ["/".join(mazes.ANT_POLICY)]
        if self.task.is_maze:
            return []
        parts = parts_of(self.policies, self.task.env, self.task.level)
        return [f"{self.task.env}/{part}" for part in parts if part != CHANCE]

    def _count(self) -> int:
        if self.rows is not None:
            return self.rows
        if self.task.is_maze:
            return mazes.default_rows(self.task)
        return _ROWS * len(parts_of(self.policies, self.task.env, self.task.level))

    def _roll_out(self, progress: Progress | bool) -> Transitions:
        count = self._count()
        if self.task.is_maze:
            reach: Policy = PointReacher()
            if self.policies is not None and self._needed():
                reach = read_policy(self.policies, *mazes.ANT_POLICY)
            return mazes.collected(self.task, reach, count, seed=self.seed, progress=progress)
        return regenerated(self.policies, self.task.env, self.task.level, count, seed=self.seed, progress=progress)

    def _digest(self) -> str:
        known: dict[str, Any] = {"name": self.task.name, "rows": self._count(), "seed": self.seed}
        known["synther"] = __version__  # another may collect in another way
        if self.policies is not None and self._needed():
            known["policies"] = digest_of(self.policies)
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]


def folder_for(data: Path | None) -> Path:
    """Where to keep what is made: the user's own folder of data, or `SYNTHER_CACHE`, or a folder in the user's cache.

    A folder that is marked read-only is left alone, even if one could write there.
    """
    if data is not None and data.stat().st_mode & 0o200 and os.access(data, os.W_OK):
        return data
    told = os.environ.get("SYNTHER_CACHE")
    if told:
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "synther"


def _listed(names: set[str]) -> str:
    return f"the {'policy' if len(names) == 1 else 'policies'} {' and '.join(sorted(names))}"
