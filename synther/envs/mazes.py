"""D4RL's mazes in gymnasium-robotics, ways through them, and controllers that walk them.

An observation is the flat row that Gymnasium makes of a maze's dictionary: the position (`achieved_goal`), the goal
(`desired_goal`), then what the body feels (`observation`).
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
"""Of a ball, after its position, which is there twice."""

_PULL, _BRAKE = 10.0, 1.3
"""Action for each metre to go and against each metre a second. Together they damp a ball of 4.2 kg critically."""

_ARRIVED = 0.1
"""Cells from the middle of the one that was aimed at."""

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

_NOISE = {"maze2d": 0.5, "antmaze": 0.0}
"""Std of the noise on actions: the ball's controller is deterministic, an ant's policy draws its actions."""


@dataclass(frozen=True, eq=False)
class Maze:
    """Square cells, some of them walls, with the origin in the middle; row 0 is the one with the largest y.

    `size` is the length of a cell's side. Every free cell must be reachable from every other.
    """

    walls: NDArray[np.bool_]
    size: float

    def __post_init__(self) -> None:
        if not (~self.walls).any():
            raise DataError("a maze needs at least one free cell, and got walls only")
        if (self.first_steps < 0).any():
            raise DataError("some free cells of the maze cannot be reached from the others: open a wall between them")

    @classmethod
    def of(cls, maze_map: Sequence[Sequence[int | str]], size: float) -> Maze:
        """From a map of gymnasium-robotics: 1 is a wall; 0, "r", "g" and "c" are free."""
        return cls(np.array([[cell == 1 for cell in row] for row in maze_map]), size)

    @cached_property
    def cells(self) -> NDArray[np.intp]:
        """Row and column of the free cells, (n, 2): a cell's number is its place among them."""
        return np.argwhere(~self.walls)

    @cached_property
    def middles(self) -> NDArray[np.float64]:
        """Where their middles are, (n, 2): x and y."""
        rows, columns = self.walls.shape
        from_middle = self.cells[:, ::-1] - np.array([columns - 1, rows - 1]) / 2
        middles: NDArray[np.float64] = from_middle * np.array([self.size, -self.size])
        return middles

    @cached_property
    def first_steps(self) -> NDArray[np.intp]:
        """The number of the cell to go to first, from cell i on a shortest way to cell j, (n, n); -1 without a way.

        Ways lead from a cell to the one above, below, left or right of it.
        """
        number = {(int(row), int(column)): place for place, (row, column) in enumerate(self.cells)}
        steps = np.full((len(number), len(number)), -1)
        for goal, there in number.items():
            steps[there, there] = there
            border = deque([goal])
            while border:  # breadth first, from the goal outwards
                row, column = border.popleft()
                for beside in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                    here = number.get(beside)
                    if here is not None and steps[here, there] < 0:
                        steps[here, there] = number[row, column]
                        border.append(beside)
        return steps

    def numbers(self, positions: Array) -> NDArray[np.intp]:
        """Of the cells that positions (k, 2) lie in, or next to."""
        away = np.linalg.norm(positions[:, None] - self.middles, axis=-1)
        nearest: NDArray[np.intp] = away.argmin(1)
        return nearest

    def toward(self, positions: Array, goals: Array) -> NDArray[np.float64]:
        """Where to go straight from each position (k, 2) to get to its goal (k, 2): the next cell's middle, or it."""
        here, there = self.numbers(positions), self.numbers(goals)
        return np.where((here == there)[:, None], goals, self.middles[self.first_steps[here, there]])


@dataclass(frozen=True)
class PointReacher:
    """Rolls the ball of PointMaze straight to the goal of its observation, and stops there."""

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        to_go = observation[:, GOAL] - observation[:, POSITION]
        action: Array = np.clip(_PULL * to_go - _BRAKE * observation[:, _POINT_SPEED], -1, 1)
        return action


@dataclass(frozen=True, eq=False)
class Guide:
    """Goes through a maze to the goal of its observation, on a shortest way.

    `reach` is a policy that goes straight to the goal of its observation: it is shown the next place of the way there.
    """

    maze: Maze
    reach: Policy

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        shown = observation.copy()
        shown[:, GOAL] = self.maze.toward(observation[:, POSITION], observation[:, GOAL])
        return self.reach.act(shown, rng)


@dataclass(eq=False)
class Wanderer:
    """Is guided to free cells of the maze, drawn one after the other, whatever the task's goal is.

    Actions are those of the guide, in [-1, 1], with normal noise of the deviation `noise`. It remembers where each of
    its episodes is heading: one object plays one set of episodes, side by side.
    """

    guide: Guide
    noise: float = 0.0
    _heading: Array | None = field(default=None, init=False)

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        maze, here = self.guide.maze, observation[:, POSITION]
        drawn = maze.middles[rng.integers(len(maze.cells), size=len(here))]
        heading = drawn if self._heading is None else self._heading
        arrived = np.linalg.norm(heading - here, axis=1) < _ARRIVED * maze.size
        self._heading = np.where(arrived[:, None], drawn, heading)
        shown = observation.copy()
        shown[:, GOAL] = self._heading
        action = self.guide.act(shown, rng)
        return np.clip(action + self.noise * rng.standard_normal(action.shape), -1, 1)


@dataclass(frozen=True)
class D4RLMaze:
    """The task that D4RL's scores are about."""

    body: str
    """maze2d, a ball, or antmaze, an ant."""
    size: str
    """umaze, medium or large."""

    @property
    def env_id(self) -> str:
        return _ENV_IDS[self.body].format(_SIZES[self.size])

    @property
    def columns(self) -> int:
        """Of a flat observation. D4RL's own files have others, in other coordinates."""
        return {"maze2d": 8, "antmaze": 31}[self.body]

    def options(self, *, anywhere: bool = False) -> dict[str, Any]:
        """For `gymnasium.make`.

        A ball starts anywhere and gets a reward for every step at its goal. An ant starts in its corner, or `anywhere`,
        and the episode ends at the goal.
        """
        # As in gymnasium-robotics: 1 is a wall, "g" the goal, "r" the start, and without an "r" all cells are starts.
        drawn: list[list[int | str]] = [[int(cell == "#") for cell in row] for row in _WALLS[self.size].split()]
        row, column = _GOALS[self.body][self.size]
        drawn[row][column] = "g"
        if self.body == "antmaze" and not anywhere:
            drawn[_ANT_START[0]][_ANT_START[1]] = "r"
        return {"maze_map": drawn, "continuing_task": self.body == "maze2d", "reset_target": False}

    def wanderer(self, reach: Policy) -> Wanderer:
        """Goes from one cell to another by `reach`."""
        maze = Maze.of(self.options(anywhere=True)["maze_map"], _CELL[self.body])
        return Wanderer(Guide(maze, reach), _NOISE[self.body])
