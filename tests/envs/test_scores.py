from __future__ import annotations

import numpy as np
import pytest

from synther.envs.scores import Reference, reference

HOPPER, WALKER, CHEETAH = (-20.272305, 3234.3), (1.629008, 4592.3), (-280.178953, 12135.0)
ANT = (-325.6, 3879.7)


@pytest.mark.parametrize(
    ("env_id", "low", "high"),
    [
        *((f"Hopper-v{version}", *HOPPER) for version in (2, 3, 4, 5)),
        *((f"Walker2d-v{version}", *WALKER) for version in (2, 3, 4, 5)),
        *((f"HalfCheetah-v{version}", *CHEETAH) for version in (2, 3, 4, 5)),
        *((f"Ant-v{version}", *ANT) for version in (2, 3, 4, 5)),
        ("ant-medium-replay-v2", *ANT),
        ("hopper-medium-v2", *HOPPER),
        ("walker2d-medium-replay-v2", *WALKER),
        ("halfcheetah-medium-expert-v0", *CHEETAH),
        ("maze2d-umaze-v1", 23.85, 161.86),
        ("PointMaze_UMaze-v3", 23.85, 161.86),
        ("PointMaze_Medium-v3", 13.13, 277.39),
        ("gymnasium_robotics:PointMaze_Large-v3", 6.7, 273.99),
        ("antmaze-umaze-v2", 0, 1),
        ("antmaze-large-diverse-v2", 0, 1),
        ("AntMaze_Medium_Diverse_GR-v5", 0, 1),
        ("dm_control/cheetah-run-v0", 0, 1000),
    ],
)
def test_published_references(env_id: str, low: float, high: float) -> None:
    assert reference(env_id) == Reference(low, high)
    np.testing.assert_allclose(Reference(low, high).score([low, (low + high) / 2, high]), [0, 50, 100], atol=1e-9)


def test_scores_keep_the_shape_and_have_no_limits() -> None:
    returns = np.array([[-20.272305, 3234.3, 6488.872305]], np.float32)
    scores = Reference(-20.272305, 3234.3).score(returns)
    assert scores.shape == (1, 3)
    assert scores[0, 2] == pytest.approx(200, rel=1e-6)
    assert Reference(0.0, 1.0).score(-1.0) == -100


@pytest.mark.parametrize(
    ("env_id", "options", "published"),
    [
        ("Hopper-v4", {}, True),
        ("Hopper-v4", {"max_episode_steps": 50}, False),
        ("PointMaze_UMaze-v3", {}, False),
        ("PointMaze_UMaze-v3", {"maze_map": [[1]], "continuing_task": True, "reset_target": False}, True),
        ("AntMaze_UMaze-v4", {"reset_target": False}, False),
        ("gymnasium_robotics:AntMaze_UMaze-v4", {"continuing_task": False}, True),
    ],
)
def test_another_task_has_no_score(env_id: str, options: dict, published: bool) -> None:
    assert (reference(env_id, options) is not None) == published
    assert reference(env_id) is not None  # as far as anybody knows
    unknown = ("Pendulum-v1", "HopperBulletEnv-v0", "Hopper-v6", "Hopper", "maze2d-umaze-dense-v1", "")
    assert not any(map(reference, (*unknown, "PointMaze_UMazeDense-v3")))
