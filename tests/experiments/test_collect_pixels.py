"""Frames that are collected: which episodes, how many, by whom. A stand-in is drawn, and once a real world."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synther import Transitions, write
from synther.agents.agent import Agent
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.envs.camera import graphics
from synther.envs.workers import Workers
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import collect_pixels
from synther.experiments.collect_pixels import film, film_run, frames_target, keep
from synther.pixels.files import read
from synther.pixels.frames import Frames

TASK = "dm_control/pendulum-swingup-v0"


class Here:
    """In the place of worker processes: the same work in this one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*given))
        return future

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


class Counter:
    """A world of three numbers, the last of which counts decisions, and so does its frame. Reward: the action."""

    decisions = 10
    low, high = np.full(1, -1, np.float32), np.full(1, 1, np.float32)
    last = decisions
    """After so many decisions its state is terminal."""

    def __init__(self, env_id: str, *, size: int, repeat: int, backend: str) -> None:
        assert (env_id, backend) == (TASK, "chalk")
        self.size, self.repeat = size, repeat

    def reset(self, seed: int) -> None:
        self.count = 0
        self.start = seed % 251
        self._see()

    def step(self, action: np.ndarray) -> tuple[None, float, bool, bool]:
        self.count += 1
        self._see()
        over = self.count >= self.last
        return None, float(action[0]), over and self.last < self.decisions, over and self.last == self.decisions

    def _see(self) -> None:
        self.state = np.array([self.start / 250, self.repeat / 10, self.count / 10], np.float32)
        self.frame = np.full((3, self.size, self.size), self.start + self.count, np.uint8)

    def close(self) -> None:
        pass

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _in_an_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counter]:
    """No graphics and no processes."""

    class Own(Counter):
        pass

    collect_pixels._world.cache_clear()
    monkeypatch.setattr(collect_pixels, "graphics", lambda: "chalk")
    monkeypatch.setattr(collect_pixels, "Workers", Here)
    monkeypatch.setattr(collect_pixels, "PixelWorld", Own)
    yield Own
    collect_pixels._world.cache_clear()


def filmed(decisions: int, **how: Any) -> Frames:
    return Frames.concatenate(list(film(TASK, "random", decisions, size=6, **how)))


def test_whole_episodes_and_one_that_is_cut(counted):
    found = filmed(23)
    starts, ends = found.episodes
    assert (ends - starts - 1).tolist() == [10, 10, 3]
    assert (found.env_id, found.action_repeat, found.image.shape) == (TASK, 2, (26, 3, 6, 6))
    assert (found.discount == 1).all()
    for start, end in zip(starts, ends, strict=True):
        assert (np.diff(found.image[start:end, 0, 0, 0]) == 1).all()
    assert len(set(found.image[starts, 0, 0, 0])) == 3  # no start is played twice
    assert (found.action[starts] == 0).all()
    moved = found.action[~found.first, 0]
    assert len(set(moved.tolist())) == 23
    np.testing.assert_allclose(found.reward[~found.first], moved)


def test_episodes_that_are_over_are_followed_by_others(counted):
    counted.last = 4
    found = filmed(23)
    starts, ends = found.episodes
    # Three are planned, and as twelve decisions are missing then, two more, of which the last is cut; then three again.
    assert (ends - starts - 1).tolist() == [4, 4, 3, 4, 2, 4, 2]
    assert found.discount[ends - 1].tolist() == [0, 0, 1, 0, 1, 0, 1]
    assert np.count_nonzero(~found.first) == 23


def test_frames_depend_on_the_seed_and_not_on_the_processes(counted):
    one, same, other = filmed(23, processes=1), filmed(23, processes=4), filmed(23, seed=1)
    for name in ("image", "action", "reward", "first"):
        np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert (one.action != other.action).any()
    assert filmed(5, repeat=3).action_repeat == 3


def agent_file(columns: int = 3) -> Path:
    rng = np.random.default_rng(0)
    rows = Transitions(
        observation=rng.normal(size=(64, columns)),
        action=rng.uniform(-1, 1, (64, 1)),
        reward=rng.normal(size=64),
        next_observation=rng.normal(size=(64, columns)),
    )
    agent = Agent(TD3BCConfig(width=8, batch=8), Rows([rows], device=torch.device("cpu")), [Member(0), Member(1)])
    agent.save(Path("agent.safetensors"))
    return Path("agent.safetensors")


def test_an_agent_acts(counted):
    path = str(agent_file())
    how: dict[str, Any] = {"size": 6}
    one, again, other, noisy, noisy_again = (
        Frames.concatenate(list(film(TASK, path, 12, **how, **more)))
        for more in ({}, {}, {"member": 1}, {"noise": 0.5}, {"noise": 0.5})
    )
    np.testing.assert_array_equal(one.action, again.action)
    np.testing.assert_array_equal(noisy.action, noisy_again.action)
    assert (one.action != other.action).any()
    assert (one.action[1:11] != noisy.action[1:11]).mean() > 0.5  # but for those at an edge of the box
    with pytest.raises(ConfigError, match="there is no member 2"):
        film(TASK, path, 12, member=2)
    with pytest.raises(DataError, match="takes 4 observation columns and gives 1 actions"):
        film(TASK, str(agent_file(4)), 12)


@pytest.mark.parametrize(
    ("given", "how", "says"),
    [
        ((TASK, "random", 0), {}, "steps and repeat must be at least 1, got 0 and 2"),
        ((TASK, "random", 5), {"repeat": 0}, "got 5 and 0"),
        ((TASK, "random", 5), {"seed": -1}, "seed must be 0 or more"),
        (("Hopper-v4", "random", 5), {}, "frames are drawn of the dm_control suite"),
        ((TASK, "guess", 5), {}, "expected random or AGENT.safetensors for a policy of .*, got 'guess'"),
        ((TASK, "random", 5), {"noise": 0.1}, "--member and --noise are for an agent's file"),
    ],
    ids=str,
)
def test_what_is_refused_at_once(counted, given, how, says):
    with pytest.raises(ConfigError, match=says):
        film(*given, **how)


def test_what_is_kept(counted):
    counted.last = 10
    found = keep(Path("new/frames.hdf5"), film(TASK, "random", 23, size=6))
    kept = read("new/frames.hdf5")
    assert (found.env_id, found.frames, found.decisions, found.episodes, found.whole) == (TASK, 26, 23, 3, 2)
    assert found.mean_return == pytest.approx(kept.returns()[:2].mean(), rel=1e-6)
    assert found.deviation == pytest.approx(kept.returns()[:2].std(), rel=1e-6)
    np.testing.assert_array_equal(kept.image, filmed(23).image)


def test_where_it_may_go():
    assert frames_target("new/frames.HDF5") == Path("new/frames.HDF5")
    Path("old.hdf5").touch()
    with pytest.raises(ConfigError, match=r"old\.hdf5 exists and is not replaced"):
        frames_target("old.hdf5")
    for name in ("frames.npz", "frames", "minari:mine/frames-v0"):
        with pytest.raises(ConfigError, match=r"frames are kept as \.hdf5 or \.h5, got"):
            frames_target(name)


def run_folder(rows: Transitions) -> Path:
    """What an online run leaves, as far as anybody looks at it."""
    folder = Path("run")
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"env_id": rows.env_id, "random_steps": 5}))
    (folder / "result.json").write_text("{}")
    write(folder / "replay.npz", rows)
    return folder


def states(count: int = 9, env_id: str = TASK, **changed: Any) -> Transitions:
    """Rows of two episodes, of which the first is terminal."""
    seen = np.random.default_rng(0).normal(size=(count + 1, 3)).astype(np.float32)
    fields: dict[str, Any] = {
        "observation": seen[:-1],
        "action": np.linspace(-1, 1, count, dtype=np.float32)[:, None],
        "reward": np.arange(count, dtype=np.float32),
        "next_observation": seen[1:],
        "terminal": np.arange(count) == 3,
        "timeout": np.arange(count) == count - 1,
        "env_id": env_id,
    }
    return Transitions(**fields | changed)


def test_a_run_is_drawn_again(counted, monkeypatch):
    def drawn(env_id, observations, actions, size, backend):
        assert (env_id, size, backend) == (TASK, 6, "chalk")
        assert len(observations) == len(actions) + 1
        shown = (observations[:, 0] * 20 + 128).astype(np.uint8)
        return np.broadcast_to(shown[:, None, None, None], (len(shown), 3, size, size)).copy()

    monkeypatch.setattr(collect_pixels, "redraw", drawn)
    rows = states()
    found = Frames.concatenate(list(film_run(run_folder(rows), size=6)))
    assert found.episodes[0].tolist() == [0, 5]
    assert (found.env_id, found.action_repeat) == (TASK, 1)
    assert np.flatnonzero(found.discount == 0).tolist() == [4]
    np.testing.assert_array_equal(found.action[~found.first], rows.action)
    np.testing.assert_array_equal(found.reward[~found.first], rows.reward)
    seen = np.concatenate(
        [rows.observation[:4], rows.next_observation[3:4], rows.observation[4:], rows.next_observation[-1:]]
    )
    np.testing.assert_array_equal(found.image[:, 0, 0, 0], (seen[:, 0] * 20 + 128).astype(np.uint8))


def test_runs_that_cannot_be_drawn(counted):
    whole = states()
    gap = whole.next_observation.copy()
    gap[6] += 1
    with pytest.raises(DataError, match="row 6 ends in another state than row 7 begins with"):
        film_run(run_folder(states(next_observation=gap)))
    write("run/replay.npz", states(env_id="dm_control/swimmer-swimmer6-v0"))
    with pytest.raises(DataError, match="do not follow from its observations"):
        film_run(Path("run"))
    Path("run/replay.npz").unlink()
    with pytest.raises(FormatError, match=r"has no replay\.npz yet"):
        film_run(Path("run"))


@pytest.mark.parametrize("workers", [Here, pytest.param(Workers, marks=pytest.mark.slow)])
def test_a_task_is_really_drawn(monkeypatch, workers):
    """Here or in another process, against a world that is stepped by hand."""
    try:
        backend = graphics()
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(collect_pixels, "Workers", workers)
    found = Frames.concatenate(list(film(TASK, "random", 3, repeat=500, size=8, seed=4, processes=1)))
    assert found.episodes[0].tolist() == [0, 3]
    world = collect_pixels._world(TASK, backend, 500, 8)
    for number, (start, end) in enumerate(zip(*found.episodes, strict=True)):
        world.reset(int(np.random.SeedSequence((2, 4, 0, number)).generate_state(1)[0]))
        np.testing.assert_array_equal(found.image[start], world.frame)
        for record in range(start + 1, end):
            _, reward, *_ = world.step(found.action[record])
            np.testing.assert_array_equal(found.image[record], world.frame)
            assert found.reward[record] == pytest.approx(reward)
