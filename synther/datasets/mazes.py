"""D4RL's mazes in gymnasium-robotics: where one starts, where the goal is, and data collected by walking about.

As in D4RL, one goal counts, always the same (but for noise within its cell), and whoever collects the data goes
wherever chance sends them. So the data has the rewards of the task that agents are evaluated in.
"""

from __future__ import annotations

from typing import Any

from synther.data.transitions import Transitions
from synther.datasets.names import Task
from synther.envs.mazes import Guide, Maze, Wanderer
from synther.envs.policies import Policy
from synther.envs.recording import record
from synther.progress import Progress

Map = list[list[int | str]]

ANT_POLICY = "ant", "goal"
"""Names in a file of policies the one that an ant follows: it walks to the goal of AntMaze's flat observation."""

COLUMNS = {"maze2d": 8, "antmaze": 31}
"""Of a flat observation. D4RL's own files have other ones, in other coordinates."""

ROWS = {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}
"""Of maze2d, as D4RL has them."""

_ANT_ROWS = 1_000_000
_NOISE = {"maze2d": 0.5, "antmaze": 0.0}
"""Deviation of the noise on actions: a ball would always go the same way, an ant's policy draws its actions itself."""

_ENV_IDS = {"maze2d": "PointMaze_{}-v3", "antmaze": "AntMaze_{}-v4"}
_SIZES = {"umaze": "UMaze", "medium": "Medium", "large": "Large"}
_CELL = {"maze2d": 1.0, "antmaze": 4.0}
"""Metres."""

_WALLS = {
    "umaze": "#####  #...#  ###.#  #...#  #####",
    "medium": "########  #..##..#  #..#...#  ##...###  #..#...#  #.#..#.#  #...#..#  ########",
    "large": (
        "############  #....#.....#  #.##.#.#.#.#  #......#...#  #.####.###.#  #..#.#.....#  ##.#.#.#.###  "
        "#..#...#...#  ############"
    ),
}
_GOALS = {
    "maze2d": {"umaze": (1, 1), "medium": (6, 6), "large": (7, 9)},
    "antmaze": {"umaze": (3, 1), "medium": (6, 6), "large": (7, 9)},
}
_ANT_START = (1, 1)


def env_id(task: Task) -> str:
    return _ENV_IDS[task.env].format(_SIZES[_size(task)])


def env_options(task: Task) -> dict[str, Any]:
    """For `gymnasium.make`: the task that D4RL's scores are about.

    A ball starts anywhere and is paid for every step at its goal; an ant starts in its corner, and the episode ends at
    the goal.
    """
    drawn = maze_map(task)
    if task.env == "antmaze":
        drawn[_ANT_START[0]][_ANT_START[1]] = "r"
    return _options(task, drawn)


def maze_map(task: Task) -> Map:
    """As gymnasium-robotics has it: 1 for a wall, "g" for the goal, and 0, where one may start anywhere."""
    size = _size(task)
    drawn: Map = [[int(cell == "#") for cell in row] for row in _WALLS[size].split()]
    row, column = _GOALS[task.env][size]
    drawn[row][column] = "g"
    return drawn


def default_rows(task: Task) -> int:
    return ROWS[_size(task)] if task.env == "maze2d" else _ANT_ROWS


def collected(task: Task, reach: Policy, rows: int, *, seed: int, progress: Progress | bool) -> Transitions:
    """`rows` of whole episodes that start anywhere and go from one cell to another by `reach`; see `Wanderer`."""
    drawn = maze_map(task)
    walker = Wanderer(Guide(Maze.of(drawn, _CELL[task.env]), reach), _NOISE[task.env])
    options = _options(task, drawn)
    return record(env_id(task), [walker], rows, options=options, seed=seed, name=task.name, progress=progress)


def _options(task: Task, drawn: Map) -> dict[str, Any]:
    return {"maze_map": drawn, "continuing_task": task.env == "maze2d", "reset_target": False}


def _size(task: Task) -> str:
    return task.level.partition("-")[0]
