"""Returns as D4RL's normalised score: 0 is chance, 100 an expert."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Reference:
    """The returns that score 0 and 100."""

    low: float
    high: float

    def score(self, returns: ArrayLike) -> NDArray[np.float64]:
        """100 (return - low) / (high - low), of the shape of `returns`. There is no upper or lower limit."""
        scores: NDArray[np.float64] = 100 * (np.asarray(returns, np.float64) - self.low) / (self.high - self.low)
        return scores


_LEVEL = r"(-[a-z]+)*-v[0-5]"
"""What may follow the name of a body: a simulator's version, or the level and version of a D4RL data set."""

_REFERENCES: dict[str, Reference] = {
    rf"hopper{_LEVEL}": Reference(-20.272305, 3234.3),
    rf"walker2d{_LEVEL}": Reference(1.629008, 4592.3),
    rf"halfcheetah{_LEVEL}": Reference(-280.178953, 12135.0),
    r"(pointmaze_|maze2d-)umaze-v\d+": Reference(23.85, 161.86),
    r"(pointmaze_|maze2d-)medium-v\d+": Reference(13.13, 277.39),
    r"(pointmaze_|maze2d-)large-v\d+": Reference(6.7, 273.99),
    r"antmaze[_-](umaze|medium|large)([_-](diverse|play|gr|diverse_gr))?-v\d+": Reference(0.0, 1.0),
    r"dm_control/.+": Reference(0.0, 1000.0),
}
"""D4RL's own figures, by what an id looks like in small letters; the suite's as V-D4RL has them, return / 10.

Mazes with a dense reward have other figures in D4RL, and none here. PointMaze's are for one goal that stays where it is
and pays at every step, AntMaze's for episodes that end at the goal: in gymnasium-robotics these are a map with one "g"
and `reset_target=False`, and the option `continuing_task=False`.
"""


_TASK: dict[str, dict[str, Any]] = {"pointmaze_": {"reset_target": False}, "antmaze_": {"continuing_task": False}}
"""What a maze of gymnasium-robotics is told for the task of D4RL's figures."""


def reference(env_id: str, options: Mapping[str, Any] | None = None) -> Reference | None:
    """What the returns of `env_id` (`Hopper-v4`, `hopper-medium-v2`, `PointMaze_UMaze-v3`...) are measured against.

    None where nobody has published it. The figures are those of D4RL's simulators (v2); they are used for later
    versions too, as everybody does. A module before a colon does not count: `gymnasium_robotics:AntMaze_UMaze-v5`.
    `options` are those that the environment was made with, where they are known: with others it is another task, which
    nobody has published anything of.
    """
    name = env_id.rpartition(":")[2].lower()
    if options is not None and not _is_published(name, options):
        return None
    for pattern, found in _REFERENCES.items():
        if re.fullmatch(pattern, name):
            return found
    return None


def _is_published(name: str, options: Mapping[str, Any]) -> bool:
    for maze, wanted in _TASK.items():
        if name.startswith(maze):
            return all(options.get(option) == value for option, value in wanted.items())
    return not options
