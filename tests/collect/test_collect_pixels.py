"""Frames that are collected: which episodes, how many, by whom. A stand-in is drawn, and once a real world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from synther import Transitions, write
from synther.agents.agent import Agent
from synther.agents.learner import Learner
from synther.agents.policy import load_policy
from synther.agents.rows import Member, Rows
from synther.agents.sac import SACConfig
from synther.agents.td3_bc import TD3BCConfig
from synther.collect.frames import FrameRecorder, record_frames, record_run_frames
from synther.envs.camera import graphics
from synther.envs.policies import frozen
from synther.envs.workers import Workers
from synther.errors import ConfigError, DataError, FormatError
from synther.folder import digest_of
from synther.pixels import recording
from synther.pixels.frames import Frames
from synther.pixels.recording import Look

from ..support.files import run_folder
from ..support.processes import Here
from .counter import TASK, Counter, same, stand_in


@pytest.fixture(autouse=True)
def _in_an_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counter]]:
    yield stand_in(monkeypatch)
    recording._env.cache_clear()


def recorded(decisions: int, **how: Any) -> Frames:
    return Frames.concatenate(list(record_frames(TASK, "random", decisions, size=6, **how).after([])))


def test_whole_episodes_and_one_that_is_cut(counted):
    found = recorded(23)
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
    found = recorded(23)
    starts, ends = found.episodes
    # Three are planned, and as twelve decisions are missing then, two more, of which the last is cut; then three again.
    assert (ends - starts - 1).tolist() == [4, 4, 3, 4, 2, 4, 2]
    assert found.discount[ends - 1].tolist() == [0, 0, 1, 0, 1, 0, 1]
    assert np.count_nonzero(~found.first) == 23


def test_frames_depend_on_the_seed_and_not_on_the_processes(counted):
    one, again, other = recorded(23, processes=1), recorded(23, processes=4), recorded(23, seed=1)
    assert same(one, again)
    assert (one.action != other.action).any()
    assert recorded(5, repeat=3).action_repeat == 3


def goes_on(recorder: FrameRecorder, made: list[Frames]) -> bool:
    """After any of the episodes, as it was `made` before."""
    lengths = [len(episode) - 1 for episode in made]
    rests = [list(recorder.after(lengths[:count])) for count in range(len(made) + 1)]
    return all(
        len(rest) == len(made) - count and all(map(same, rest, made[count:])) for count, rest in enumerate(rests)
    )


@pytest.mark.parametrize("last", [10, 4])
def test_it_goes_on_after_any_episode(counted, last):
    """Also where the first ones were over before their time, so that others were needed."""
    counted.last = last
    made = list(record_frames(TASK, "random", 23, size=6).after([]))
    assert goes_on(record_frames(TASK, "random", 23, size=6, processes=3), made)


def agent_file(columns: int = 3, width: int = 8) -> Path:
    rng = np.random.default_rng(0)
    rows = Transitions(
        observation=rng.normal(size=(64, columns)),
        action=rng.uniform(-1, 1, (64, 1)),
        reward=rng.normal(size=64),
        next_observation=rng.normal(size=(64, columns)),
    )
    table = Rows([rows], device=torch.device("cpu"))
    Agent(TD3BCConfig(width=width, batch_size=8), table, [Member(0), Member(1)]).save(Path("agent.safetensors"))
    return Path("agent.safetensors")


def test_an_agent_acts(counted):
    path = str(agent_file())
    how: dict[str, Any] = {"size": 6}
    one, again, other, noisy, noisy_again = (
        Frames.concatenate(list(record_frames(TASK, path, 12, **how, **more).after([])))
        for more in ({}, {}, {"member": 1}, {"noise": 0.5}, {"noise": 0.5})
    )
    np.testing.assert_array_equal(one.action, again.action)
    np.testing.assert_array_equal(noisy.action, noisy_again.action)
    assert (one.action != other.action).any()
    assert (one.action[1:11] != noisy.action[1:11]).mean() > 0.5  # but for those at an edge of the box
    with pytest.raises(ConfigError, match="there is no member 2"):
        record_frames(TASK, path, 12, member=2)
    with pytest.raises(DataError, match="4 observation columns"):
        record_frames(TASK, str(agent_file(4)), 12)


def sac_file(log_std: Literal["clamp", "tanh"] = "clamp") -> tuple[Learner, str]:
    """An agent that draws its actions, and its file."""
    config = SACConfig(width=8, batch_size=8, log_std=log_std)
    learner = Learner(config, [0, 1], 3, [-1.0], [1.0], capacity=9, device=torch.device("cpu"))
    learner.save(Path("sac.safetensors"))
    return learner, "sac.safetensors"


def test_an_agent_draws_its_actions_as_in_training(counted):
    learner, path = sac_file()
    meant, drawn, again = (
        Frames.concatenate(list(record_frames(TASK, path, 20, size=6, member=1, stochastic=wanted).after([])))
        for wanted in (False, True, True)
    )
    np.testing.assert_array_equal(drawn.action, again.action)
    assert (drawn.action != meant.action)[~drawn.first].all()
    seen = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    draws = [np.random.default_rng(7).standard_normal((5, 1), np.float32)] * 2
    expected = learner.algorithm.explore(torch.from_numpy(seen), torch.from_numpy(np.stack(draws))).detach()
    actors = frozen(load_policy(path), stochastic=True)
    found = [actor.act(rows, np.random.default_rng(7)) for actor, rows in zip(actors, seen, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_who_cannot_draw(counted):
    for path in (str(agent_file()), sac_file("tanh")[1]):
        with pytest.raises(ConfigError, match=f"{path}.*distribution"):
            record_frames(TASK, path, 12, stochastic=True)
    with pytest.raises(ConfigError, match="--stochastic"):
        record_frames(TASK, "random", 12, stochastic=True)


@pytest.mark.parametrize("last", [10, 4])
def test_shares_of_several_policies(counted, last):
    """Each has a share of its own, with other starts than the others, and a stop anywhere changes nothing."""
    counted.last = last
    path = str(agent_file())
    recorder = record_frames(TASK, ("random", path, path), 47, size=6)
    made = list(recorder.after([]))
    lengths = [len(episode) - 1 for episode in made]
    assert sum(lengths) == 47
    if last == 10:
        assert lengths == [10, 5, 10, 6, 10, 6]
        alone = list(record_frames(TASK, "random", 15, size=6).after([]))
        assert all(map(same, made[:2], alone))
    shown = {int(episode.image[0, 0, 0, 0]) for episode in made}
    assert len(shown) == len(made), "no start is played twice"
    assert recorder.identity["policy"][1:] == 2 * [digest_of(Path(path))]
    assert goes_on(recorder, made)


def test_a_smaller_shadow_map_is_remembered(counted):
    plain, small = recorded(5), recorded(5, shadow_size=64)
    assert (plain.shadow_size, small.shadow_size) == (None, 64)
    assert (small.image[:, 2] == 64).all()


@pytest.mark.parametrize(
    ("given", "how", "says"),
    [
        ((TASK, "random", 0), {}, "steps"),
        ((TASK, ("random", "random", "random"), 2), {}, "at least 3"),
        ((TASK, ("random", "guess"), 5), {}, "'guess'"),
        ((TASK, "random", 5), {"repeat": 0}, "repeat"),
        ((TASK, "random", 5), {"seed": -1}, "seed"),
        (("Hopper-v4", "random", 5), {}, "dm_control suite"),
        ((TASK, "guess", 5), {}, "'guess'"),
        ((TASK, "random", 5), {"noise": 0.1}, "--noise"),
    ],
    ids=str,
)
def test_what_is_refused_at_once(counted, given, how, says):
    with pytest.raises(ConfigError, match=says):
        record_frames(*given, **how)


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
    def drawn(env_id, observations, actions, size, backend, shadow_size):
        assert (env_id, size, backend, shadow_size) == (TASK, 6, "chalk", 512)
        assert len(observations) == len(actions) + 1
        shown = (observations[:, 0] * 20 + 128).astype(np.uint8)
        return np.broadcast_to(shown[:, None, None, None], (len(shown), 3, size, size)).copy()

    monkeypatch.setattr(recording, "redraw", drawn)
    rows = states()
    how: dict[str, Any] = {"size": 6, "shadow_size": 512}
    found = Frames.concatenate(list(record_run_frames(run_folder(Path("run"), rows), **how).after([])))
    assert found.episodes[0].tolist() == [0, 5]
    assert (found.env_id, found.action_repeat, found.shadow_size) == (TASK, 1, 512)
    assert np.flatnonzero(found.discount == 0).tolist() == [4]
    np.testing.assert_array_equal(found.action[~found.first], rows.action)
    np.testing.assert_array_equal(found.reward[~found.first], rows.reward)
    seen = np.concatenate(
        [rows.observation[:4], rows.next_observation[3:4], rows.observation[4:], rows.next_observation[-1:]]
    )
    np.testing.assert_array_equal(found.image[:, 0, 0, 0], (seen[:, 0] * 20 + 128).astype(np.uint8))
    (last,) = record_run_frames(Path("run"), **how).after([4])
    np.testing.assert_array_equal(last.image, found.image[5:])
    assert list(record_run_frames(Path("run"), **how).after([4, 5])) == []


def test_what_frames_depend_on(counted):
    """Names of files do not matter, what they hold does."""
    path = agent_file()
    one = record_frames(TASK, str(path), 12).identity
    path = path.rename("same.safetensors")
    assert record_frames(TASK, str(path), 12, member=0, noise=0.0, processes=3).identity == one
    changes: list[dict[str, Any]] = [{"member": 1}, {"noise": 0.5}, {"shadow_size": 512}]
    others = [record_frames(TASK, str(path), 12, **more).identity for more in changes]
    others += [record_frames(TASK, policy, 12).identity for policy in ("random", str(agent_file(width=9)))]
    differ = [[name for name in one if one[name] != other[name]] for other in others]
    assert differ == [["member"], ["noise"], ["shadow_size"], ["policy"], ["policy"]]
    rows = record_run_frames(run_folder(Path("run"), states())).identity
    assert record_run_frames(Path("run").rename("moved")).identity == rows
    write(states(reward=np.ones(9, np.float32)), "moved/replay.npz")
    assert record_run_frames(Path("moved")).identity["rows"] != rows["rows"]


def test_runs_that_cannot_be_drawn(counted):
    with pytest.raises(ConfigError, match="shadow size"):
        record_run_frames(run_folder(Path("flat"), states()), shadow_size=0)
    whole = states()
    gap = whole.next_observation.copy()
    gap[6] += 1
    with pytest.raises(DataError, match="row 6"):
        record_run_frames(run_folder(Path("run"), states(next_observation=gap)))
    write(states(env_id="dm_control/swimmer-swimmer6-v0"), "run/replay.npz")
    with pytest.raises(DataError, match="swimmer6"):
        record_run_frames(Path("run"))
    Path("run/replay.npz").unlink()
    with pytest.raises(FormatError, match=r"has no replay\.npz yet"):
        record_run_frames(Path("run"))


@pytest.mark.parametrize("workers", [Here, pytest.param(Workers, marks=pytest.mark.slow)])
def test_a_task_is_really_drawn(monkeypatch, workers):
    """Here or in another process, against a world that is stepped by hand."""
    try:
        backend = graphics()
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(recording, "Workers", workers)
    how: dict[str, Any] = {"repeat": 500, "size": 8, "shadow_size": 64, "seed": 4, "processes": 1}
    found = Frames.concatenate(list(record_frames(TASK, "random", 3, **how).after([])))
    assert found.episodes[0].tolist() == [0, 3]
    env = recording._env(Look(TASK, 500, 8, 64, backend))
    for number, (start, end) in enumerate(zip(*found.episodes, strict=True)):
        env.reset(int(np.random.SeedSequence((2, 4, 0, number)).generate_state(1)[0]))
        np.testing.assert_array_equal(found.image[start], env.frame)
        for record in range(start + 1, end):
            _, reward, *_ = env.step(found.action[record])
            np.testing.assert_array_equal(found.image[record], env.frame)
            assert found.reward[record] == pytest.approx(reward)
