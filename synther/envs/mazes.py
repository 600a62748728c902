"""D4RL's mazes in gymnasium-robotics, shortest paths through them, and controllers that follow these paths.

Observations are flat: Gymnasium flattens the dictionary of a maze to the position (`achieved_goal`), the goal
(`desired_goal`) and then the state of the body (`observation`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.envs.policies import Policy
from synther.errors import DataError

Array = NDArray[Any]

POSITION, GOAL = slice(0, 2), slice(2, 4)
"""Columns of a flat observation."""

_POINT_SPEED = slice(6, 8)
"""Columns of the ball's velocity in a flat observation. Position, goal and again the position come first."""

_PULL, _BRAKE = 10.0, 1.3
"""Gains of a PD controller for distance (m) and velocity (m/s). They damp a ball of 4.2 kg critically."""

_ARRIVED = 0.1
"""A cell counts as reached within this distance from its centre, as a fraction of the cell's side."""

_ENV_IDS = {"maze2d": "PointMaze_{}-v3", "antmaze": "AntMaze_{}-v4"}
_SIZES = {"umaze": "UMaze", "medium": "Medium", "large": "Large"}
_CELL = {"maze2d": 1.0, "antmaze": 4.0}
"""Length of a cell's side in metres."""

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

_NOISE = {"maze2d": 0.5, "antmaze": 0.0}
"""Std of the noise on actions. It is 0 for an ant, because an ant's policy is already stochastic."""


@dataclass(frozen=True, eq=False)
class Maze:
    """A grid of square cells, some of which are walls. The origin is the centre of the grid. Row 0 has the largest y.

    `size` is the length of a cell's side. Every free cell must be reachable from every other free cell.
    """

    walls: NDArray[np.bool_]
    size: float

    def __post_init__(self) -> None:
        if not (~self.walls).any():
            raise DataError("a maze needs at least one free cell, got only walls")
        if (self.first_steps < 0).any():
            raise DataError("some free cells of the maze cannot be reached from the others: open a wall between them")

    @classmethod
    def of(cls, maze_map: Sequence[Sequence[int | str]], size: float) -> Maze:
        """Create a maze from a map of gymnasium-robotics: 1 is a wall, and 0, "r", "g" and "c" are free cells."""
        return cls(np.array([[cell == 1 for cell in row] for row in maze_map]), size)

    @cached_property
    def cells(self) -> NDArray[np.intp]:
        """Row and column of each free cell, (n, 2). The index of a cell in this array is the number of the cell."""
        return np.argwhere(~self.walls)

    @cached_property
    def middles(self) -> NDArray[np.float64]:
        """x and y of the centre of each free cell, (n, 2)."""
        rows, columns = self.walls.shape
        from_middle = self.cells[:, ::-1] - np.array([columns - 1, rows - 1]) / 2
        middles: NDArray[np.float64] = from_middle * np.array([self.size, -self.size])
        return middles

    @cached_property
    def first_steps(self) -> NDArray[np.intp]:
        """Number of the first cell on a shortest path from cell i to cell j, (n, n), or -1 if there is no path.

        A path moves to the cell above, below, left or right.
        """
        number = {(int(row), int(column)): place for place, (row, column) in enumerate(self.cells)}
        steps = np.full((len(number), len(number)), -1)
        for goal, goal_number in number.items():
            steps[goal_number, goal_number] = goal_number
            border = deque([goal])
            while border:  # breadth-first search, starting at the goal
                row, column = border.popleft()
                for neighbour in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                    start = number.get(neighbour)
                    if start is not None and steps[start, goal_number] < 0:
                        steps[start, goal_number] = number[row, column]
                        border.append(neighbour)
        return steps

    def numbers(self, positions: Array) -> NDArray[np.intp]:
        """Return the number of the nearest free cell (k,) for each position (k, 2)."""
        distances = np.linalg.norm(positions[:, None] - self.middles, axis=-1)
        nearest: NDArray[np.intp] = distances.argmin(1)
        return nearest

    def toward(self, positions: Array, goals: Array) -> NDArray[np.float64]:
        """Return the next waypoint (k, 2) on the way from each position (k, 2) to its goal (k, 2).

        This is the centre of the next cell, or the goal itself if it is in the same cell.
        """
        starts, ends = self.numbers(positions), self.numbers(goals)
        return np.where((starts == ends)[:, None], goals, self.middles[self.first_steps[starts, ends]])


@dataclass(frozen=True)
class PointReacher:
    """Policy that moves the ball of PointMaze straight to the goal in its observation, and stops there."""

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        to_go = observation[:, GOAL] - observation[:, POSITION]
        action: Array = np.clip(_PULL * to_go - _BRAKE * observation[:, _POINT_SPEED], -1, 1)
        return action


@dataclass(frozen=True, eq=False)
class Guide:
    """Policy that follows a shortest path through a maze to the goal in its observation.

    `reach` is a policy that goes straight to the goal in its observation. It gets the next waypoint as its goal.
    """

    maze: Maze
    reach: Policy

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        shown = observation.copy()
        shown[:, GOAL] = self.maze.toward(observation[:, POSITION], observation[:, GOAL])
        return self.reach.act(shown, rng)


@dataclass(eq=False)
class Wanderer:
    """Policy that goes to randomly drawn free cells of a maze, one after the other. It ignores the goal of the task.

    It takes the actions of the guide, in [-1, 1], and adds Gaussian noise of std `noise`. The object stores the current
    target of each episode, so use a new object for each set of parallel episodes.
    """

    guide: Guide
    noise: float = 0.0
    _target: Array | None = field(default=None, init=False)

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        maze, position = self.guide.maze, observation[:, POSITION]
        drawn = maze.middles[rng.integers(len(maze.cells), size=len(position))]
        target = drawn if self._target is None else self._target
        arrived = np.linalg.norm(target - position, axis=1) < _ARRIVED * maze.size
        self._target = np.where(arrived[:, None], drawn, target)
        shown = observation.copy()
        shown[:, GOAL] = self._target
        action = self.guide.act(shown, rng)
        return np.clip(action + self.noise * rng.standard_normal(action.shape), -1, 1)


@dataclass(frozen=True)
class D4RLMaze:
    """A maze task of D4RL, with the goal and the rewards that D4RL's normalised scores need."""

    body: str
    """The body in the maze: "maze2d" is a ball, "antmaze" is an ant."""
    size: str
    """The maze: "umaze", "medium" or "large"."""

    @property
    def env_id(self) -> str:
        """Id of the environment in gymnasium-robotics."""
        return _ENV_IDS[self.body].format(_SIZES[self.size])

    @property
    def columns(self) -> int:
        """Number of columns of a flat observation. D4RL's own files have other columns, in other coordinates."""
        return {"maze2d": 8, "antmaze": 31}[self.body]

    def options(self, *, anywhere: bool = False) -> dict[str, Any]:
        """Return the options for `gymnasium.make`.

        A ball starts in any cell and gets a reward for every step at the goal. An ant starts in its corner (with
        `anywhere`: in any cell), and its episode ends at the goal.
        """
        # In gymnasium-robotics, 1 is a wall, "g" the goal and "r" the start. Without an "r", any cell is a start.
        drawn: list[list[int | str]] = [[int(cell == "#") for cell in row] for row in _WALLS[self.size].split()]
        row, column = _GOALS[self.body][self.size]
        drawn[row][column] = "g"
        if self.body == "antmaze" and not anywhere:
            drawn[_ANT_START[0]][_ANT_START[1]] = "r"
        return {"maze_map": drawn, "continuing_task": self.body == "maze2d", "reset_target": False}

    def wanderer(self, reach: Policy) -> Wanderer:
        """Return a policy that walks between random cells of this maze. It uses `reach` to go to the next waypoint."""
        maze = Maze.of(self.options(anywhere=True)["maze_map"], _CELL[self.body])
        return Wanderer(Guide(maze, reach), _NOISE[self.body])
