"""Compute D4RL's normalised score of returns: a random policy has a score of 0, an expert 100."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.envs import bodies


@dataclass(frozen=True)
class Reference:
    """The returns with a score of 0 (`low`) and 100 (`high`)."""

    low: float
    high: float

    def score(self, returns: ArrayLike) -> NDArray[np.float64]:
        """Return 100 (return - low) / (high - low), in the shape of `returns`. Scores are not clipped."""
        scores: NDArray[np.float64] = 100 * (np.asarray(returns, np.float64) - self.low) / (self.high - self.low)
        return scores


_LEVEL = r"(-[a-z]+)*-v[0-5]"
"""Pattern for the text after the name of a body: the version of an environment, or level and version of a data set."""

_REFERENCES: dict[str, Reference] = {
    rf"hopper{_LEVEL}": Reference(-20.272305, 3234.3),
    rf"walker2d{_LEVEL}": Reference(1.629008, 4592.3),
    rf"halfcheetah{_LEVEL}": Reference(-280.178953, 12135.0),
    rf"ant{_LEVEL}": Reference(-325.6, 3879.7),
    r"(pointmaze_|maze2d-)umaze-v\d+": Reference(23.85, 161.86),
    r"(pointmaze_|maze2d-)medium-v\d+": Reference(13.13, 277.39),
    r"(pointmaze_|maze2d-)large-v\d+": Reference(6.7, 273.99),
    r"antmaze[_-](umaze|medium|large)([_-](diverse|play|gr|diverse_gr))?-v\d+": Reference(0.0, 1.0),
    r"dm_control/.+": Reference(0.0, 1000.0),
}
"""D4RL's reference returns. Keys are patterns of ids in lower case. For dm_control, score = return / 10, as in V-D4RL.

Mazes with dense rewards are not included. PointMaze's values are for one fixed goal that gives a reward at every step.
In gymnasium-robotics, this is a map with one "g" and `reset_target=False`. AntMaze's values are for episodes that end
at the goal: `continuing_task=False`.
"""


_TASK: dict[str, dict[str, Any]] = {"pointmaze_": {"reset_target": False}, "antmaze_": {"continuing_task": False}}
"""Options of gymnasium-robotics that a maze needs to be the task of D4RL's reference returns."""


def reference(env_id: str, options: Mapping[str, Any] | None = None) -> Reference | None:
    """Return the reference returns of `env_id`, or None if there are no published values.

    `env_id` is the id of an environment or of a D4RL data set: `Hopper-v4`, `hopper-medium-v2`, `PointMaze_UMaze-v3`.
    The values were published for D4RL's simulators (v2). As is common, they are also used for later versions. A module
    name before a colon is ignored: `gymnasium_robotics:AntMaze_UMaze-v5`. `options` are the options of the environment,
    if they are known. A task that is changed by its options has no reference.
    """
    name = env_id.rpartition(":")[2].lower()
    if options is not None and not _is_published(name, options):
        return None
    for pattern, values in _REFERENCES.items():
        if re.fullmatch(pattern, name):
            return values
    return None


def _is_published(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether the reference returns were published for the task with these options."""
    options, _ = bodies.split(dict(options))  # `capsules` is allowed: the values were published for the old bodies
    for maze, wanted in _TASK.items():
        if name.startswith(maze):
            return all(options.get(option) == value for option, value in wanted.items())
    return not options
