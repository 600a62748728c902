from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synther.envs import evaluation, recording
from synther.envs.episodes import play
from synther.envs.evaluation import Evaluator
from synther.envs.making import Trusted, opened
from synther.envs.mazes import GOAL, POSITION, Guide, Maze, PointReacher, Wanderer
from synther.envs.policies import MlpPolicy
from synther.envs.recording import record
from synther.errors import DataError

from ..support.processes import Here

U_MAZE: list[list[int | str]] = [
    [1, 1, 1, 1, 1],
    [1, "g", 0, 0, 1],
    [1, 1, 1, 0, 1],
    [1, 0, 0, 0, 1],
    [1, 1, 1, 1, 1],
]
U_OPTIONS = {"maze_map": U_MAZE, "continuing_task": True, "reset_target": False}


@pytest.fixture
def umaze() -> Maze:
    return Maze.of(U_MAZE, 1.0)


def test_shortest_ways_of_a_maze_solved_by_hand(umaze: Maze) -> None:
    # 0 1 2
    # # 3 #
    # 4 5 6
    maze = Maze.of([["r", 0, 0], [1, 0, 1], [0, "c", "g"]], 2.0)
    assert maze.cells.tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert maze.middles.tolist() == [[-2, 2], [0, 2], [2, 2], [0, 0], [-2, -2], [0, -2], [2, -2]]
    to_last = [1, 3, 1, 5, 5, 6, 6]
    to_first = [0, 0, 1, 1, 5, 3, 5]
    assert maze.first_steps[:, 6].tolist() == to_last
    assert maze.first_steps[:, 0].tolist() == to_first
    for drawn in ([[0, 1, 0]], [[1, 1]]):
        with pytest.raises(DataError, match=r"reached|free cell"):
            Maze.of(drawn, 1.0)
    here = np.array([[-1.0, -0.8], [1.3, -0.9], [-0.7, 1.2], [-0.51, 1.0]])
    goal = np.array([[-0.9, 1.1]] * 4)
    # Around the wall, by the middles of cells; the goal itself once its cell is reached.
    np.testing.assert_array_equal(umaze.toward(here, goal), [[0, -1], [1, 0], [-0.9, 1.1], [-0.9, 1.1]])


def test_the_shorter_of_two_ways() -> None:
    # 0 1 2 3 4
    # 5 # # # 6
    # 7 8 9 a b
    ring = Maze.of([[0] * 5, [0, 1, 1, 1, 0], [0] * 5], 1.0)
    assert ring.first_steps[1, 8] == 0
    assert ring.first_steps[3, 10] == 4
    lengths = np.zeros(len(ring.cells), int)
    for start in range(len(ring.cells)):
        here = start
        while here != 11:
            here = ring.first_steps[here, 11]
            lengths[start] += 1
    assert lengths.tolist() == [6, 5, 4, 3, 2, 5, 1, 4, 3, 2, 1, 0]


@pytest.fixture(scope="module")
def balls() -> Iterator[list[Any]]:
    with opened("PointMaze_UMaze-v3", **U_OPTIONS) as one, opened("PointMaze_UMaze-v3", **U_OPTIONS) as other:
        yield [one, other]


def from_walls(position: Any) -> float:
    """Metres from the nearest wall of the U maze."""
    rows, columns = np.nonzero(np.array([[cell == 1 for cell in row] for row in U_MAZE]))
    beyond = np.maximum(np.abs(np.stack([columns - 2, 2 - rows], 1) - position) - 0.5, 0)
    return float(np.linalg.norm(beyond, axis=1).min())


def test_a_guided_ball_reaches_the_goal_and_stays(umaze: Maze, balls: list[Any]) -> None:
    keys = [(0, seed) for seed in range(2)]
    rewards: list[list[float]] = [[], []]
    for slot, step in play(balls, "PointMaze", Guide(umaze, PointReacher()), keys):
        rewards[slot].append(step.reward)
        assert from_walls(step.observation[POSITION]) > 0.08  # a ball has a radius of 0.1
    for episode in rewards:
        first = episode.index(1.0)
        assert first < 150  # six cells at most, at 4 metres a second
        assert episode[first:] == [1.0] * (300 - first)
    at_rest = np.array([[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0, 0]])
    assert PointReacher().act(at_rest, np.random.default_rng(0)).tolist() == [[0, 0]]
    rolling = np.array([[0, 0, 1.0, 0, 0, 0, 0, -3.0]])
    assert PointReacher().act(rolling, np.random.default_rng(0)).tolist() == [[1, 1]]


def test_a_wanderer_goes_to_cell_after_cell(umaze: Maze, balls: list[Any]) -> None:
    wanderer = Wanderer(Guide(umaze, PointReacher()))
    headings, cells = set(), set()
    for slot, step in play(balls, "PointMaze", wanderer, [(1, seed) for seed in range(2)]):
        headings.add((slot, *wanderer._target[slot].tolist()))
        cells.add(int(umaze.numbers(step.observation[None, POSITION])[0]))
        assert (step.observation[GOAL] == step.next_observation[GOAL]).all()  # the task's goal is another matter
    assert {heading[1:] for heading in headings} <= {tuple(middle) for middle in umaze.middles.tolist()}
    assert len(headings) > 4
    assert len(cells) >= 5
    still = Guide(umaze, MlpPolicy(((np.zeros((8, 2)), np.zeros(2)),)))
    actions = Wanderer(still, 0.3).act(np.zeros((4000, 8)), np.random.default_rng(0))
    assert actions.std() == pytest.approx(0.3, rel=0.03)
    assert np.abs(Wanderer(still, 3.0).act(np.zeros((50, 8)), np.random.default_rng(0))).max() == 1


class Copying(Here):
    """A wanderer remembers where it goes: every piece of work has one of its own, as in another process."""

    def submit(self, *work: Any) -> Any:
        return super().submit(*pickle.loads(pickle.dumps(work)))


def test_recorded_walks(umaze: Maze, monkeypatch) -> None:
    monkeypatch.setattr(recording, "Workers", Copying)
    wanderer, options = Wanderer(Guide(umaze, PointReacher()), 0.5), U_OPTIONS | {"max_episode_steps": 40}
    rows = record("PointMaze_UMaze-v3", [wanderer], 410, options=options, seed=3)
    assert record("PointMaze_UMaze-v3", [wanderer], 201, options=options, seed=3)[:200].equals(rows[:200])
    assert len(np.unique(rows.observation[rows.timeout])) > 50  # no two episodes are alike
    assert rows.observation.shape == (410, 8)
    assert rows.env_id == "PointMaze_UMaze-v3"
    assert np.flatnonzero(rows.timeout).tolist() == [*range(39, 400, 40), 409]
    inside = np.setdiff1d(np.arange(409), np.flatnonzero(rows.timeout))
    np.testing.assert_array_equal(rows.next_observation[inside], rows.observation[inside + 1])
    near = np.linalg.norm(rows.next_observation[:, POSITION] - rows.next_observation[:, GOAL], axis=1) <= 0.45
    np.testing.assert_array_equal(rows.reward, near)


def test_evaluation_of_balls(umaze: Maze, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "Workers", Here)
    with Evaluator("PointMaze_UMaze-v3", [0], episodes=5, workers=1, options=U_OPTIONS) as evaluator:
        found = evaluator.evaluate([Guide(umaze, PointReacher())])
    assert (found.lengths == 300).all()
    assert found.scores.mean() > 100  # D4RL's own controller is slower


def test_evaluation_of_ants_in_silent_worker_processes(capfd: pytest.CaptureFixture[str]) -> None:
    ant_map = [[1, 1, 1, 1], [1, "r", "g", 1], [1, 1, 1, 1]]
    options = {"maze_map": ant_map, "continuing_task": False, "max_episode_steps": 12}
    still = MlpPolicy(((np.zeros((31, 8)), np.zeros(8)),))
    with Evaluator("AntMaze_UMaze-v4", [0], episodes=2, workers=1, options=options) as evaluator:
        found = evaluator.evaluate([still])
    assert found.lengths.tolist() == [[12, 12]]
    assert found.scores.tolist() == [[0, 0]]
    assert capfd.readouterr() == ("", "")  # gymnasium-robotics has a notice for whoever imports it


def test_an_ant_is_shown_the_next_place_as_its_goal() -> None:
    """A policy whose first actions are the way that it is shown, in cells."""
    weight = np.zeros((31, 8))
    weight[0, 0] = weight[1, 1] = -0.01
    weight[2, 0] = weight[3, 1] = 0.01
    maze = Maze.of(U_MAZE, 4.0)
    guide = Guide(maze, MlpPolicy(((weight, np.zeros(8)),)))
    with opened("AntMaze_UMaze-v4", maze_map=U_MAZE, continuing_task=False, max_episode_steps=3) as env:
        for _, step in islice(play([env], "AntMaze", guide, [(5,)]), 3):
            here, goal = step.observation[None, POSITION], step.observation[None, GOAL]
            expected = np.tanh(0.01 * (maze.toward(here, goal) - here))
            np.testing.assert_allclose(step.action[None, :2], expected, rtol=1e-4, atol=1e-7)


def test_an_opened_maze_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened(Trusted("gymnasium_robotics:PointMaze_UMaze-v3")) as env:
        env.reset(seed=0)
        assert list(tmp_path.iterdir()) == []
