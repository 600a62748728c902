from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synther.agents.agent import ALGORITHMS
from synther.data.episodes import returns, whole_returns
from synther.data.transitions import Transitions
from synther.datasets import Dataset, is_known
from synther.datasets.tasks import Change, by_returns, canonical, less_one, tasks
from synther.errors import DataError

TASKS = {task.name: task for task in tasks()}
BALLS = [name for name in TASKS if name.startswith("maze2d")]
ANTS = [name for name in TASKS if name.startswith("antmaze")]
SCALED = ["hopper-medium", "hopper-medium-replay", "hopper-mixed"]

AGENT: dict[str, dict[str, dict[str, Any]]] = {
    "hopper-random": {"edac": {"num_critics": 50}},
    "hopper-medium": {"iql": {"deterministic": True, "tau": 0.001}, "edac": {"num_critics": 50}},
    "hopper-expert": {"edac": {"num_critics": 50}},
    "hopper-medium-expert": {"iql": {"expectile": 0.5, "beta": 6.0}, "edac": {"num_critics": 50}},
    "hopper-medium-replay": {"iql": {"deterministic": True, "tau": 0.001}, "edac": {"num_critics": 50}},
    "hopper-full-replay": {"edac": {"num_critics": 50}},
    "hopper-mixed": {"iql": {"deterministic": True, "tau": 0.001}, "edac": {"num_critics": 50}},
    "walker2d-medium-expert": {"edac": {"eta": 5.0}},
    "halfcheetah-medium-expert": {"edac": {"eta": 5.0}},
    **{name: {"edac": {"eta": 0.1}, "cql": {"target_action_gap": 5.0}} for name in BALLS},
    **{name: {"iql": {"expectile": 0.9, "beta": 10.0}} for name in ANTS},
}
"""All that differs from the defaults of the algorithms."""

REWARDS: dict[str, dict[str, Change]] = {
    **{name: {"iql": by_returns} for name in SCALED},
    "hopper-medium": {"iql": by_returns, "cql": by_returns},
    **{name: dict.fromkeys(("td3_bc", "iql", "cql"), less_one) for name in ANTS},
}


ANT_FILE = "Ant_maze_{}-maze_noisy_multistart_{}_multigoal_{}_sparse"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hopper-medium", "hopper-medium"),
        ("hopper-medium-v2", "hopper-medium"),
        ("walker2d_medium-v2", "walker2d-medium"),
        ("halfcheetah_medium_expert-v2", "halfcheetah-medium-expert"),
        ("walker2d-mixed", "walker2d-mixed"),
        ("maze2d-umaze-sparse-v1", "maze2d-umaze"),
        ("mujoco/hopper/medium-v0", "hopper-medium"),
        ("D4RL/pointmaze/umaze-v2", "maze2d-umaze"),
        ("D4RL/antmaze/medium-play-v1", "antmaze-medium-play"),
        (ANT_FILE.format("u", "False", "False") + "_fixed", "antmaze-umaze"),
        (ANT_FILE.format("u", "True", "True"), "antmaze-umaze-diverse"),
        (ANT_FILE.format("big", "True", "False") + "_fixed", "antmaze-medium-play"),
        (ANT_FILE.format("hardest", "True", "True") + "_fixed", "antmaze-large-diverse"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert canonical(text) == name
    assert name in TASKS
    assert is_known(text)


@pytest.mark.parametrize(
    "text",
    ["hopper-sac", "hopper", "ant-medium", "maze2d-open", "maze2d-umaze-dense-v1", "somebody/hopper/medium-v0", ""],
)
def test_what_means_no_task(text: str) -> None:
    assert canonical(text) not in TASKS


@pytest.mark.parametrize("name", TASKS)
def test_the_table(name: str) -> None:
    task = TASKS[name]
    assert task.name == canonical(name) == canonical(f"{task.minari('D4RL')}-v1") == name
    assert (task.maze is not None) == ("maze" in name)
    assert task.agent == AGENT.get(name, {})
    assert task.rewards == REWARDS.get(name, {})
    assert task.episodes == (100 if "maze" in name else 10)
    for algorithm, changes in task.agent.items():
        config = ALGORITHMS.get(algorithm).config_class()
        assert all(getattr(config, key) != value for key, value in changes.items())
        replace(config, **changes)


def rows(reward: list[float], terminal: list[int], timeout: list[int] | None) -> Transitions:
    count = len(reward)
    observation = np.zeros((count, 2), np.float32)
    marks = np.zeros((2, count), bool)
    marks[0, terminal] = marks[1, timeout or []] = True
    cut = None if timeout is None else marks[1]
    return Transitions(observation, observation, np.array(reward, np.float32), observation, marks[0], cut)


EPISODES = rows([1, 2, 3, 4, 10, -5, 7, 0, 1000], [1], [4, 7])
"""Returns of 3, 17 and 2, and the beginning of another episode."""


def data_set(name: str, given: Transitions) -> Dataset:
    return Dataset(name, given, None, {}, TASKS[name].agent, rewards=TASKS[name].rewards)


def test_returns_are_those_of_whole_episodes() -> None:
    assert returns(EPISODES).tolist() == [3, 17, 2]
    cut = rows([1, 2, 3, 4, 10, -5, 7], [1], [4, 6])  # the last one by the end of the recording
    assert returns(cut).tolist() == [3, 17, 2]
    assert whole_returns(cut).tolist() == [3, 17]
    assert whole_returns(cut, limit=2).tolist() == [3, 17, 2]
    assert whole_returns(cut, limit=4).tolist() == [3]


def test_rewards_scaled_by_the_span_of_returns() -> None:
    found = data_set("hopper-mixed", EPISODES)
    scaled = found.rows_for("iql")
    assert scaled.reward.dtype == np.float32
    np.testing.assert_allclose(scaled.reward, EPISODES.reward * np.float32(1000 / 15), rtol=1e-6)
    assert np.ptp(returns(scaled)) == pytest.approx(1000)
    assert found.rows_for("td3_bc") is found.rows
    part = EPISODES[2:4]  # by what all rows say, not the part
    np.testing.assert_allclose(found.rows_for("iql", part).reward, [200, 4000 / 15], rtol=1e-6)


def test_rewards_less_one() -> None:
    found = data_set("antmaze-umaze", rows([0, 1, 0], [1], [2]))
    for algorithm in ("td3_bc", "iql", "cql"):
        assert found.rows_for(algorithm).reward.tolist() == [-1, 0, -1]
    assert found.rows_for("edac").reward.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="n-step"):
        found.rows_for("iql", replace(found.rows, extra={"discount": np.full(3, 0.9)}))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (rows([1, 2, 3], [1], None), "timeouts"),
        (rows([1, 2, 3], [], []), "different returns, got 0"),
        (rows([1, 2, 2, 1], [1], [3]), "different returns, got 2"),
        (rows([1, 2, 2, 1, 9], [1], [3, 4]), "different returns, got 2"),
    ],
)
def test_returns_that_cannot_scale(given: Transitions, text: str) -> None:
    with pytest.raises(DataError, match=text):
        data_set("hopper-medium", given).rows_for("iql")


@pytest.mark.parametrize("name", [*BALLS, *ANTS])
def test_mazes_are_those_of_gymnasium_robotics_with_one_goal(name: str) -> None:
    from gymnasium_robotics.envs.maze import maps

    task = TASKS[name]
    size = task.level.partition("-")[0]
    theirs = {"umaze": maps.U_MAZE, "medium": maps.MEDIUM_MAZE, "large": maps.LARGE_MAZE}[size]
    assert task.maze is not None
    options = task.maze.options()
    drawn = options.pop("maze_map")
    assert [[0 if cell in ("r", "g") else cell for cell in row] for row in drawn] == theirs
    marked = {cell: (i, j) for i, row in enumerate(drawn) for j, cell in enumerate(row) if cell in ("r", "g")}
    ball = task.env == "maze2d"
    goal = {"umaze": (1, 1) if ball else (3, 1), "medium": (6, 6), "large": (7, 9)}[size]
    assert marked == ({"g": goal} if ball else {"g": goal, "r": (1, 1)})
    assert options == {"continuing_task": ball, "reset_target": False}
