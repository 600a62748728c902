"""Which rows a name leads to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from synther import datasets, formats
from synther.data.transitions import Transitions
from synther.datasets import rollouts
from synther.envs.making import opened
from synther.envs.policies import LOG_STD, MlpPolicy
from synther.errors import ConfigError, DataError, FormatError
from synther.pixels import files
from synther.pixels.frames import Frames

STILL = {"weight0": np.zeros((11, 6)), "bias0": np.repeat([0.0, -1.0], 3)}
"""A hopper that falls at once."""


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("SYNTHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("synther.envs.recording.cores", lambda: 1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    path = tmp_path / "hoppers.npz"
    np.savez(path, **{f"hopper/{level}/{key}": array for level in ("medium", "expert") for key, array in STILL.items()})
    return path


def rows(mark: float, columns: int = 11, env_id: str | None = None) -> Transitions:
    observation = np.full((4, columns), mark, np.float32)
    timeout = np.array([False, True, False, True])
    reward = np.array([1, 2, 3, 4], np.float32)
    return Transitions(observation, np.zeros((4, 3), np.float32), reward, observation, timeout=timeout, env_id=env_id)


def mark_of(found: datasets.Dataset) -> float:
    return float(found.rows.observation[0, 0])


def install(name: str, observations: Any, actions: Any, **how: Any) -> None:
    """An episode of two steps."""
    buffer = EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=np.ones(2),
        terminations=np.zeros(2, bool),
        truncations=np.array([False, True]),
        infos={},
    )
    minari.create_dataset_from_buffers(name, [buffer], **how)


def install_hopper(name: str, mark: float) -> None:
    box = gymnasium.spaces.Box
    spaces = {"observation_space": box(-9, 9, (11,)), "action_space": box(-1, 1, (3,))}
    install(name, np.full((3, 11), mark), np.zeros((2, 3), np.float32), **spaces)


def test_a_path_goes_before_everything(data: Path) -> None:
    formats.write(rows(1), "hopper-medium.npz")
    formats.write(rows(2), data / "hopper-medium.npz")
    found = datasets.read("hopper-medium.npz", data=data)
    assert mark_of(found) == 1
    assert found.agent["iql"] == {"deterministic": True, "tau": 0.001}
    assert found.env_id == "Hopper-v4"  # D4RL's simulator does not run any more
    assert found.origin == "read from hopper-medium.npz"


def test_names_of_files_in_the_folder(data: Path) -> None:
    for mark, name in enumerate(("hopper_medium-v0.hdf5", "hopper_medium-v2.hdf5", "hopper_medium_replay-v2.hdf5")):
        formats.write(rows(mark), data / name)
    assert mark_of(datasets.read("hopper-medium", data=data)) == 1  # the newer version
    assert mark_of(datasets.read("hopper-medium-replay", data=data)) == 2
    assert mark_of(datasets.read("hopper_medium-v0.hdf5", data=data)) == 0
    formats.write(rows(3, env_id="Hopper-v5"), data / "hopper-medium.parquet")
    exact = datasets.read("hopper-medium", data=data)
    assert (mark_of(exact), exact.env_id) == (3, "Hopper-v5")
    formats.write(rows(4), data / "ours.npz")
    own = datasets.read("ours", data=data)
    assert (mark_of(own), own.env_id, own.agent, own.episodes) == (4, None, {}, 10)


def test_rows_of_another_body_are_not_what_their_name_says(data: Path) -> None:
    formats.write(rows(1, env_id="Walker2d-v4"), data / "hopper-medium.npz")
    with pytest.raises(DataError, match="Walker2d-v4"):
        datasets.read("hopper-medium", data=data)
    formats.write(rows(1, env_id="Walker2d-v4"), data / "mine.npz")
    assert datasets.read("mine", data=data).env_id == "Walker2d-v4"


def test_frames_are_no_rows(data: Path) -> None:
    first = np.array([True, False])
    files.write(Frames(np.zeros((2, 3, 8, 8), np.uint8), np.zeros((2, 1)), first, first, first), data / "seen.hdf5")
    with pytest.raises(FormatError, match=r"seen\.hdf5 .*synther pixels train"):
        datasets.read("seen", data=data)


@pytest.mark.filterwarnings("ignore")  # Minari's, of data sets without an environment
def test_minari_and_policies(policies: Path, data: Path) -> None:
    install_hopper("mujoco/hopper/medium-v0", 1)
    install_hopper("mujoco/hopper/medium-v1", 2)
    newest = datasets.read("hopper-medium")
    assert (mark_of(newest), newest.origin) == (2, "read from Minari's mujoco/hopper/medium-v1")
    assert mark_of(datasets.read("mujoco/hopper/medium-v0")) == 1
    assert datasets.read("mujoco/hopper/medium-v0").agent["iql"] == {"deterministic": True, "tau": 0.001}
    rolled = datasets.read("hopper-medium", policies=policies, rows=30)
    assert rolled.origin == "regenerated with the policies of hoppers.npz"
    install_hopper("D4RL/hopper/medium-v2", 3)
    assert mark_of(datasets.read("hopper-medium", policies=policies, rows=30)) == 3
    formats.write(rows(4), data / "hopper-medium.npz")
    assert mark_of(datasets.read("hopper-medium", data=data, policies=policies, rows=30)) == 4


@pytest.mark.filterwarnings("ignore")
def test_what_is_there_under_that_very_name_is_not_made_anew(policies: Path, data: Path) -> None:
    install_hopper("hopper-medium-v2", 1)
    assert mark_of(datasets.read("hopper-medium-v2", policies=policies, rows=30)) == 1
    formats.write(rows(2), data / "hopper-random-v0", format="minari")
    found = datasets.read("hopper-random-v0", data=data, rows=30)
    assert (mark_of(found), found.origin) == (2, "read from hopper-random-v0")
    assert found.env_id == "Hopper-v4"
    formats.write(rows(3), Path("hopper-random-v0"), format="minari")
    assert mark_of(datasets.read("hopper-random-v0", data=data, rows=30)) == 3


def test_rolled_out_once(policies: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = datasets.read("hopper-medium-expert", data=data, policies=policies, rows=60)
    assert len(first.rows) == 60
    assert first.rows.timeout is not None
    assert first.rows.timeout[29]
    (file,) = data.iterdir()
    assert not (tmp_path / "cache").exists()
    calls: list[tuple[Any, ...]] = []

    def counted(*given: Any, **named: Any) -> Transitions:
        calls.append((named["name"], given[2], named["seed"]))
        return rows(len(calls))

    monkeypatch.setattr(rollouts, "record", counted)
    assert datasets.read("hopper-medium-expert", data=data, policies=policies, rows=60).rows.equals(first.rows)
    assert calls == []
    assert [*data.iterdir()] == [file]
    datasets.read("hopper-medium-expert", policies=policies)
    datasets.read("hopper-medium-expert", policies=policies, seed=1)
    datasets.read("hopper-medium", policies=policies)
    datasets.read("walker2d-random", data=data)
    assert calls == [
        ("hopper-medium-expert", 2_000_000, 0),
        ("hopper-medium-expert", 2_000_000, 1),
        ("hopper-medium", 1_000_000, 0),
        ("walker2d-random", 1_000_000, 0),
    ]
    assert len(list((tmp_path / "cache").iterdir())) == 3
    with policies.open("ab") as archive:
        archive.write(b" ")  # other policies
    assert mark_of(datasets.read("hopper-medium", policies=policies)) == 5
    data.chmod(0o500)
    datasets.read("hopper-random", data=data)
    assert any(kept.name.startswith("hopper-random.") for kept in (tmp_path / "cache").iterdir())


def test_nothing_is_kept_of_a_roll_out_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any, **named: Any) -> Transitions:
        raise KeyboardInterrupt

    monkeypatch.setattr(rollouts, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        datasets.read("hopper-random")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(rollouts, "record", lambda *given, **named: rows(1))
    monkeypatch.setattr(os, "replace", interrupted)  # killed just before the file would be there
    with pytest.raises(KeyboardInterrupt):
        datasets.read("hopper-random")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_maze_is_walked() -> None:
    found = datasets.read("maze2d-umaze", rows=320, seed=2)
    assert found.env_id == "PointMaze_UMaze-v3"
    assert found.episodes == 100
    assert found.origin == "collected by going from cell to cell with a controller"
    assert np.flatnonzero(found.rows.timeout).tolist() == [299, 319]
    speed = np.linalg.norm(found.rows.observation[:, 6:], axis=1)
    assert speed[50:].mean() > 1
    goal = found.rows.observation[:, 2:4]
    assert (np.abs(goal - [-1, 1]) <= 0.25).all()
    assert datasets.read("maze2d-umaze", rows=320, seed=2).rows.equals(found.rows)


@pytest.mark.filterwarnings("ignore")  # Minari's, of data sets without an author
def test_columns_of_minaris_mazes_are_those_of_the_environment() -> None:
    with opened("PointMaze_UMaze-v3") as env:
        seen = [env.reset(seed=0)[0], *(env.step(np.ones(2))[0] for _ in range(2))]
        stacked = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
        install("D4RL/pointmaze/umaze-v2", stacked, np.ones((2, 2), np.float32), env=env)
        flat = [gymnasium.spaces.flatten(env.observation_space, one) for one in seen]
    found = datasets.read("maze2d-umaze")
    assert found.origin == "read from Minari's D4RL/pointmaze/umaze-v2"
    assert found.env_id == "PointMaze_UMaze-v3"
    np.testing.assert_array_equal(found.rows.observation, flat[:2])
    with opened(found.env_id, **found.env_options) as env:
        assert gymnasium.spaces.flatten(env.observation_space, env.reset(seed=0)[0]).shape == (8,)


def test_ants_follow_a_given_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: dict[str, Any] = {}

    def record(env_id: str, walkers: list[Any], count: int, **named: Any) -> Transitions:
        recorded.update(named, env_id=env_id, walker=walkers[0], count=count)
        return rows(1, columns=31, env_id=env_id)

    monkeypatch.setattr(rollouts, "record", record)
    np.savez("ants.npz", **{"ant/goal/weight0": np.zeros((31, 16)), "ant/goal/bias0": np.arange(16)})
    found = datasets.read("antmaze-medium-play", policies=Path("ants.npz"))
    assert (found.env_id, found.env_options["continuing_task"]) == ("AntMaze_Medium-v4", False)
    assert (recorded["env_id"], recorded["count"]) == ("AntMaze_Medium-v4", 1_000_000)
    guide = recorded["walker"].guide
    assert isinstance(guide.reach, MlpPolicy)
    assert guide.reach.log_std == LOG_STD  # it draws its actions
    assert guide.reach.layers[0][1].tolist() == list(range(16))
    assert guide.maze.size == 4
    assert not any("r" in row for row in recorded["options"]["maze_map"])  # data starts anywhere
    assert recorded["options"]["continuing_task"] is False


def test_mazes_in_the_coordinates_of_d4rl_are_not_evaluated(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    formats.write(rows(1, columns=4), data / "maze2d-umaze-sparse-v1.hdf5")
    found = datasets.read("maze2d-umaze", data=data)
    assert (found.env_id, found.env_options) == (None, {})
    assert "other coordinates" in caplog.text
    formats.write(rows(2, columns=8), data / "maze2d-umaze.npz")
    assert datasets.read("maze2d-umaze", data=data).env_id == "PointMaze_UMaze-v3"


@pytest.mark.parametrize(
    ("name", "how", "text"),
    [
        ("hopper-medium", {}, r"D4RL/hopper/medium.*hopper/medium \(--policies\)"),
        ("walker2d-medium-expert", {}, "walker2d/expert and walker2d/medium"),
        ("walker2d-mixed", {}, "walker2d-mixed"),
        ("antmaze-umaze", {}, r"D4RL/antmaze/umaze.*ant/goal"),
        ("hoper-sac", {}, "'hoper-sac', and no file of this name in .*: did you mean hopper-sac"),
        ("my-rows", {}, r"'my-rows'.* hopper-sac, hopper-random"),
        ("walker2d-medium.npz", {}, "no such file"),
        ("D4RL/pointmaze/umaze-v2", {}, "minari download"),
        ("walker2d-medium", {"policies": Path("hoppers.npz")}, r"hoppers.npz .* walker2d/medium"),
        ("hopper-random", {"data": Path("nowhere")}, "nowhere is not a folder"),
        ("hopper-random", {"policies": Path("none.npz")}, r"none.npz: no such file"),
        ("hopper-random", {"rows": 0}, "rows must be at least 1, got 0"),
        ("hopper-random", {"seed": -1}, "seed"),
    ],
)
def test_what_is_not_there_or_cannot_be(name: str, how: Any, text: str, data: Path, policies: Path) -> None:
    with pytest.raises((ConfigError, FormatError), match=text):
        datasets.read(name, **{"data": data, **how})
    assert list(data.iterdir()) == []
