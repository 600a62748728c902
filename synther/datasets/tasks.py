"""D4RL's data sets and our similar ones: their names, and how agents are trained and evaluated on them. The settings
are those of the paper's code, which follows CORL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from synther.data.episodes import whole_returns
from synther.data.transitions import Transitions
from synther.envs.mazes import D4RLMaze
from synther.errors import DataError

ENV_IDS = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}
"""The simulator for each body. D4RL's v2 no longer runs. v4 is its successor and has the same rewards."""

REPLAYS = ("medium-replay", "full-replay", "mixed")
"""Levels that hold all experience of an agent during training. "mixed" is our own recording, like medium-replay."""

_LOCOMOTION = ("random", "medium", "expert", "medium-expert", *REPLAYS)
_LEVELS = {
    **dict.fromkeys(ENV_IDS, _LOCOMOTION),
    "maze2d": ("umaze", "medium", "large"),
    "antmaze": ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse"),
}

EPISODES, MAZE_EPISODES = 10, 100
"""Number of episodes in an evaluation, for locomotion and for mazes."""

Change = Callable[[Transitions], tuple[float, float]]
"""How rewards are changed: a function of all rows that returns a factor, and a number that is added afterwards."""


def by_returns(rows: Transitions) -> tuple[float, float]:
    """Scale rewards with the factor 1000 / (best return - worst return), over complete episodes."""
    found = whole_returns(rows)
    span = np.ptp(found) if len(found) else 0.0
    if span == 0:
        what = f"episodes with different returns, got {len(found)} complete episodes with a range of 0"
        raise DataError(f"rewards are scaled by the range of the returns: expected {what}")
    return 1000 / float(span), 0.0


def less_one(rows: Transitions) -> tuple[float, float]:
    """Subtract 1 from rewards of 0 and 1, so that each step costs 1, except at the goal."""
    return 1.0, -1.0


_AGENT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (r"hopper-(medium|medium-replay)", "iql", {"deterministic": True, "tau": 0.001}),
    (r"hopper-medium-expert", "iql", {"expectile": 0.5, "beta": 6.0}),
    (r"antmaze-.+", "iql", {"expectile": 0.9, "beta": 10.0}),
    (r"hopper-.+", "edac", {"num_critics": 50}),
    (r"(halfcheetah|walker2d)-medium-expert", "edac", {"eta": 5.0}),
    (r"maze2d-.+", "edac", {"eta": 0.1}),
    (r"maze2d-.+", "cql", {"target_action_gap": 5.0}),
)
_REWARDS: tuple[tuple[str, str, Change], ...] = (
    (r"hopper-(medium|medium-replay)", "iql", by_returns),
    (r"hopper-medium", "cql", by_returns),
    *((r"antmaze-.+", algorithm, less_one) for algorithm in ("td3_bc", "iql", "cql")),
)

_IN_MINARI = {"maze2d": "pointmaze"}
_MINARI_ID = re.compile(r"(?:d4rl|mujoco)/(?P<env>[a-z0-9]+)/(?P<level>[a-z-]+)")
_ANT_FILE = re.compile(
    r"ant-maze-(?P<maze>u|big|hardest)-maze-noisy-multistart-(?P<starts>true|false)-multigoal-(?P<goals>true|false)"
    r"-sparse(-fixed)?"
)
_ANT_SIZES = {"u": "umaze", "big": "medium", "hardest": "large"}


@dataclass(frozen=True)
class Task:
    """A data set of D4RL, or a similar one, such as `Task("hopper", "medium-expert")`."""

    env: str
    level: str

    @property
    def name(self) -> str:
        return f"{self.env}-{self.level}"

    @property
    def maze(self) -> D4RLMaze | None:
        """The maze, or None for locomotion."""
        return None if self.env in ENV_IDS else D4RLMaze(self.env, self.level.partition("-")[0])

    @property
    def episodes(self) -> int:
        return MAZE_EPISODES if self.maze else EPISODES

    @property
    def agent(self) -> dict[str, dict[str, Any]]:
        """For each algorithm, the options that differ from its defaults."""
        return {algorithm: dict(changes) for pattern, algorithm, changes in _AGENT if self._is(pattern)}

    @property
    def rewards(self) -> dict[str, Change]:
        """For each algorithm that needs changed rewards, how they are changed."""
        return {algorithm: change for pattern, algorithm, change in _REWARDS if self._is(pattern)}

    def is_of(self, env_id: str) -> bool:
        """Return whether an environment belongs to this task, by the name of the body or maze in its id."""
        return any(body in env_id.lower() for body in (self.env, _IN_MINARI.get(self.env, self.env)))

    def minari(self, namespace: str) -> str:
        """Return the id of the data set in a namespace of Minari, without its version."""
        return f"{namespace}/{_IN_MINARI.get(self.env, self.env)}/{self.level}"

    def _is(self, pattern: str) -> bool:
        """Return whether the name matches `pattern`. "mixed" counts as "medium-replay"."""
        return re.fullmatch(pattern, self.name.replace("-mixed", "-medium-replay")) is not None


def canonical(text: str) -> str:
    """Return a name, known or not, in our spelling: lower case, dashes, no version. `hopper_medium_replay-v2` becomes
    `hopper-medium-replay`, for example, and `D4RL/pointmaze/umaze-v2` becomes `maze2d-umaze`."""
    plain = re.sub(r"-v\d+$", "", text.lower().replace("_", "-"))
    minari, ant = _MINARI_ID.fullmatch(plain), _ANT_FILE.fullmatch(plain)
    if minari:
        own = {there: here for here, there in _IN_MINARI.items()}
        return f"{own.get(minari['env'], minari['env'])}-{minari['level']}"
    if ant:
        kind = "diverse" if ant["goals"] == "true" else "play" if ant["starts"] == "true" else ""
        return f"antmaze-{_ANT_SIZES[ant['maze']]}" + (f"-{kind}" if kind else "")
    return re.sub(r"^(maze2d-\w+)-sparse$", r"\1", plain)


def tasks() -> list[Task]:
    """Return all tasks."""
    return [Task(env, level) for env, levels in _LEVELS.items() for level in levels]
