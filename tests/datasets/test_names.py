from __future__ import annotations

import pytest

from synther.datasets.names import Task, canonical, known, task_of

ANT = "Ant_maze_{}-maze_noisy_multistart_{}_multigoal_{}_sparse"


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
        (ANT.format("u", "False", "False") + "_fixed", "antmaze-umaze"),
        (ANT.format("u", "True", "True"), "antmaze-umaze-diverse"),
        (ANT.format("big", "True", "False") + "_fixed", "antmaze-medium-play"),
        (ANT.format("hardest", "True", "True") + "_fixed", "antmaze-large-diverse"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert canonical(text) == name
    assert task_of(text) == Task(*name.split("-", 1))


@pytest.mark.parametrize(
    "text",
    ["hopper-sac", "hopper", "ant-medium", "maze2d-open", "maze2d-umaze-dense-v1", "somebody/hopper/medium-v0", ""],
)
def test_what_means_no_task(text: str) -> None:
    assert task_of(text) is None


def test_names_mean_themselves() -> None:
    for name in known():
        task = task_of(name)
        assert task is not None
        assert task.name == name
        assert task.is_maze == ("maze" in name)
        assert task_of(f"{task.minari('D4RL')}-v1") == task
