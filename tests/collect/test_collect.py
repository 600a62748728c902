"""Experience as a data set: what is rolled out, what is kept of a run, where it may go."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import minari
import numpy as np
import pytest
import torch

from synther import Transitions, read, write
from synther.agents.agent import Agent
from synther.agents.rows import Arm, Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.collect.rows import Summary, buffer_of, roll_out
from synther.data.episodes import returns
from synther.data.spaces import Box
from synther.envs import evaluation, recording, vector_env
from synther.envs.policies import frozen
from synther.errors import ConfigError, DataError, FormatError, MissingExtra
from synther.experiments import online as training
from synther.formats.targets import target_of

from ..agents.tables import CONFIGS, SMALL
from ..envs import places
from ..experiments.online.runs import PLAN
from ..experiments.online.runs import run as train_online
from ..experiments.pendulum import Guess, swings
from ..support.processes import Here

LEGS = [14, 29, 44, 54]
"""Last rows of the episodes of each seed of the online run: a pendulum's own time limit is far off."""


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes."""
    for module in (recording, evaluation):
        monkeypatch.setattr(module, "Workers", Here)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Agent, str]:
    """Two agents that do not act alike, and their file."""
    rows = Rows([swings(), swings(seed=1, shift=3.0)], device=torch.device("cpu"), low=[-2.0], high=[2.0])
    config = TD3BCConfig(width=8, batch_size=6, learning_rate=1e-2)
    agent = Agent(config, rows, [Member(0), Member(1, Arm((1,), (1.0,)))])
    agent.train(25)
    path = tmp_path_factory.mktemp("agent") / "checkpoint.safetensors"
    agent.save(path)
    return agent, str(path)


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds."""
    folder = tmp_path_factory.mktemp("online") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "Evaluator", Guess)
        patched.setattr(vector_env, "cores", lambda: 1)
        train_online(folder, replace(PLAN, synthetic=None))
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    weight = np.random.default_rng(0).normal(size=(11, 3)) / 10
    path = tmp_path_factory.mktemp("policies") / "policies.npz"
    arrays = {"weight0": np.hstack([weight, 0 * weight]), "bias0": np.repeat([0.2, -1.0], 3)}
    np.savez(path, **{f"hopper/medium/{name}": array for name, array in arrays.items()})  # type: ignore[arg-type]
    return str(path)


def known(rows: Transitions) -> tuple[object, ...]:
    return rows.action_space, rows.observation_space, rows.env_id


@pytest.mark.parametrize("out", ["new/folder", "minari:mine/hopper/random-v0"])
def test_round_trip(here: None, out: str) -> None:
    rows = roll_out("Hopper-v4", "random", 150, seed=3)
    target = target_of(out)
    write(rows, target)
    back = read(out.removeprefix("minari:"))
    assert back.equals(rows)
    assert known(back) == known(rows)
    assert back.env_id == "Hopper-v4"
    assert len(back) == 150
    if out.startswith("minari:"):
        found = minari.load_dataset("mine/hopper/random-v0")
        assert found.total_steps == 150
        assert found.total_episodes == len(returns(rows)) > 3
        assert found.env_spec is not None
        assert found.env_spec.id == "Hopper-v4"
        assert (found.action_space.low.tolist(), found.action_space.high.tolist()) == (3 * [-1], 3 * [1])


@pytest.mark.parametrize("member", [None, 1])
def test_an_agents_file_acts_and_earns_as_the_agent_does(here, trained, member, monkeypatch) -> None:
    agent, path = trained
    rows = roll_out("Pendulum-v1", path, 1_000, member=member, seed=4)
    actions = agent.act(rows.observation)
    np.testing.assert_allclose(rows.action, actions[member or 0], atol=1e-5)
    assert not np.allclose(actions[0], actions[1], atol=0.1)
    monkeypatch.setattr(evaluation, "EVALUATIONS", recording.RECORDINGS)  # so that it meets the same starts
    with evaluation.Evaluator("Pendulum-v1", [4], episodes=5) as evaluator:
        expected = evaluator.evaluate([frozen(agent.policy())[member or 0]])
    np.testing.assert_allclose(returns(rows), expected.returns[0], rtol=1e-5)
    assert Summary.of(rows).mean_return == pytest.approx(expected.returns.mean(), rel=1e-5)


def test_noise_is_measured_by_half_the_box(here, trained) -> None:
    agent, path = trained
    rows = roll_out("Pendulum-v1", path, 1_000, noise=0.05)
    meant = agent.act(rows.observation)[0]
    free = np.abs(meant) < 1.5  # five stds from the bounds
    assert free.sum() > 200
    moved = (rows.action - meant)[free]
    assert moved.std() == pytest.approx(2 * 0.05, rel=0.15)
    assert moved.mean() == pytest.approx(0, abs=0.02)
    assert np.abs(roll_out("Pendulum-v1", path, 50, noise=9.0).action).max() == 2
    assert roll_out("Pendulum-v1", path, 50, noise=0.0).equals(roll_out("Pendulum-v1", path, 50))


def test_rows_depend_on_the_seed_and_not_on_the_processes(trained) -> None:
    _, path = trained
    one, two = (roll_out("Pendulum-v1", path, 450, noise=0.1, seed=2, processes=count) for count in (1, 2))
    assert one.equals(two)
    other = roll_out("Pendulum-v1", path, 50, noise=0.1, seed=3, processes=1)
    assert not np.isin(one.reward, other.reward).any()


def test_workers_do_not_wait_for_torch() -> None:
    script = "import sys, synther.collect.rows, synther.cli.collect; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_an_archive_acts_as_it_does_elsewhere(here, archive) -> None:
    rows = roll_out("Hopper-v4", f"{archive}:hopper/medium", 60, seed=1)
    actors = recording.actors_of(Path(archive), "hopper", "medium", "Hopper-v4")
    assert rows.equals(recording.record("Hopper-v4", actors, 60, seed=1))
    halves = roll_out("Hopper-v4", f"{archive}:hopper/medium-random", 60, seed=1)
    assert roll_out("Hopper-v4", (f"{archive}:hopper/medium", "random"), 60, seed=1).equals(halves)
    assert halves[:29].equals(rows[:29])  # row 30 is the end of its half
    assert not np.isin(halves.action[30:], rows.action).any()


def test_shares_of_several_policies(here, trained) -> None:
    _, path = trained
    rows = roll_out("Pendulum-v1", ("random", path), 500, noise=0.1, seed=2)
    for share, policy, options in ((rows[:250], "random", {}), (rows[250:], path, {"noise": 0.1})):
        alone = roll_out("Pendulum-v1", policy, 250, seed=2, **options)
        assert share.timeout[-1]
        assert np.array_equal(share.action, alone.action) == (policy == "random")  # the second has other starts


@pytest.mark.parametrize(
    ("env", "policy", "options", "kind", "says"),
    [
        ("Nowhere-v0", "random", {}, DataError, "'Nowhere-v0'"),
        ("Pendulum-v1", "chance", {}, ConfigError, "random, .*AGENT.safetensors"),
        ("Pendulum-v1", ".", {}, ConfigError, "checkpoint.safetensors"),
        ("Pendulum-v1", "absent.safetensors", {}, FormatError, "absent.safetensors"),
        ("Pendulum-v1", "AGENT", {"member": 2}, ConfigError, "member 2"),
        ("Pendulum-v1", "AGENT", {"noise": -0.1}, ConfigError, "noise"),
        ("Pendulum-v1", "AGENT", {"seed": -1}, ConfigError, "seed"),
        ("Pendulum-v1", "AGENT", {"steps": 0}, ConfigError, "at least 1"),
        ("Pendulum-v1", "random", {"noise": 0.1}, ConfigError, "--noise"),
        ("Pendulum-v1", "AGENT", {"stochastic": True}, ConfigError, "distribution"),
        ("Hopper-v4", "ARCHIVE:hopper/medium", {"stochastic": True}, ConfigError, "--stochastic"),
        ("Hopper-v4", "AGENT", {}, DataError, "3 observation columns .* 11"),
        ("Hopper-v4", "ARCHIVE", {}, ConfigError, "hopper/medium"),
        ("Hopper-v4", "ARCHIVE:hopper/best", {}, FormatError, "'hopper/best'.* hopper/medium"),
        ("Walker2d-v4", "ARCHIVE:hopper/medium", {}, DataError, "11 observation columns .* 3 actions"),
    ],
)
def test_what_is_refused_before_anything_is_played(env, policy, options, kind, says, trained, archive, monkeypatch):
    monkeypatch.setattr(Here, "submit", None)
    monkeypatch.setattr(recording, "Workers", Here)
    policy = trained[1] if policy == "AGENT" else policy.replace("ARCHIVE", archive)
    with pytest.raises(kind, match=says):
        roll_out(env, policy, **{"steps": 100, **options})


def test_an_agent_of_wider_actions_is_refused(tmp_path) -> None:
    rows = Rows([swings()], device=torch.device("cpu"), low=[-2.0], high=[2.5])
    Agent(TD3BCConfig(width=8, batch_size=6), rows, [Member(0)]).save(tmp_path / "wide.safetensors")
    with pytest.raises(DataError, match=r"\[-2.\] to \[2.5\]"):
        roll_out("Pendulum-v1", str(tmp_path / "wide.safetensors"), 10)


@pytest.mark.parametrize("out", ["buffer.npz", "minari:runs/pendulum-v0"])
def test_the_buffer_of_a_run_comes_back_row_by_row(online, out) -> None:
    write(buffer_of(str(online)), target_of(out))
    back, replay = read(out.removeprefix("minari:")), read(online / "replay.npz")
    assert back.equals(replay)
    assert known(back) == known(replay)
    assert back.env_id == "Pendulum-v1"
    assert back.action_space == (Box.uniform(-2, 2, 1),)
    assert np.flatnonzero(back.timeout).tolist() == [*LEGS, *(55 + end for end in LEGS)]  # seed after seed
    if out.startswith("minari:"):
        lengths = [len(episode) for episode in minari.load_dataset("runs/pendulum-v0").iterate_episodes()]
        assert lengths == 2 * [15, 15, 15, 10]


def test_a_run_that_is_none_or_not_done(online, tmp_path, caplog) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(online, copy)
    (copy / "result.json").unlink()
    with caplog.at_level(logging.WARNING, "synther"):
        assert len(buffer_of(copy)) == 110
    assert "is not finished" in caplog.text
    caplog.clear()
    shutil.copy(online / "result.json", copy)
    assert len(buffer_of(copy)) == 110
    assert not caplog.records
    longer = json.loads((copy / "run.json").read_text()) | {"steps": 75}  # as one that goes on has it
    (copy / "run.json").write_text(json.dumps(longer))
    assert len(buffer_of(copy)) == 110
    assert "of 75 steps" in caplog.text
    (copy / "replay.npz").unlink()
    with pytest.raises(FormatError, match=r"replay\.npz"):
        buffer_of(copy)
    (copy / "run.json").write_text('{"learning_starts": 5, "kind": "online_pixels"}')
    with pytest.raises(FormatError, match=r"pixel agents: read the frames of each seed .*/frames/seed-0"):
        buffer_of(copy)
    (copy / "run.json").write_text('{"updates": 5}')
    with pytest.raises(FormatError, match="synther online"):
        buffer_of(copy)
    with pytest.raises(FormatError, match="synther online"):
        buffer_of(tmp_path)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("taken.npz", "taken.npz"),
        ("folder", "folder"),
        ("taken.npz/inside.npz", "taken.npz"),
        ("new.csv", "'.csv'"),
        ("new.pkl", "pickle"),
        ("minari:hopper", "'hopper'"),
        ("minari:mine/taken-v0", "mine/taken-v0"),
        ("minari:m/new-v0", "m/new-v0"),
        ("minari:folder/here-v0", "folder/here-v0"),
    ],
)
def test_where_nothing_may_go(out, says, tmp_path) -> None:
    Path("folder/here-v0").mkdir(parents=True)
    Path("taken.npz").write_text("mine")
    Path("store/mine/taken-v0").mkdir(parents=True)
    with pytest.raises((ConfigError, FormatError), match=says):
        target_of(out)
    assert not list(tmp_path.rglob("new*"))


def test_what_is_not_installed(monkeypatch) -> None:
    for out, library in (("minari:mine/new-v0", "minari"), ("new.parquet", "pyarrow")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtra):
            target_of(out)


def lives(*lengths: int, terminal: tuple[int, ...] = (), env_id: str | None = None) -> Transitions:
    """Episodes that pay 1 a step, those of some numbers ending in a terminal state."""
    count, ends = sum(lengths), np.cumsum(lengths) - 1
    over = np.isin(np.arange(count), ends[list(terminal)])
    cut = np.isin(np.arange(count), ends) & ~over
    return Transitions(
        *(np.zeros((count, size), np.float32) for size in (2, 1)),
        np.ones(count, np.float32),
        np.zeros((count, 2), np.float32),
        over,
        cut,
        env_id=env_id,
    )


def test_cut_episodes_count_in_no_mean() -> None:
    assert Summary.of(lives(3, 5, 5, 2, terminal=(0,))) == Summary(None, 15, 4, 3, 13 / 3, np.std([3, 5, 5]))
    assert Summary.of(lives(3, 150, 7, terminal=(0,), env_id="Pendulum-v1")).whole == 1  # its time limit is 200
    assert Summary.of(lives(200, 150, env_id="Pendulum-v1")) == Summary("Pendulum-v1", 350, 2, 1, 200.0, 0.0)
    assert Summary.of(lives(20, env_id="Pendulum-v1")) == Summary("Pendulum-v1", 20, 1, 0)
    assert Summary.of(lives(4, 9, env_id="Nobody-v7")).mean_return == 9
    suite = "dm_control/cartpole-balance-v0"  # its limit is 1,000
    assert [Summary.of(lives(length, env_id=suite)).whole for length in (999, 1_000)] == [0, 1]
    score = 100 * (400 + 20.272305) / (3234.3 + 20.272305)
    assert Summary.of(lives(400, 3, terminal=(0,), env_id="Hopper-v4")).score == pytest.approx(score)


@pytest.mark.parametrize("config", [*CONFIGS.values(), TD3BCConfig(**SMALL, depth=3)])
def test_it_acts_as_the_agent_does(config):
    """Two members that scale by different rows."""
    how = {"low": [-3.0], "high": [2.5], "next_actions": True}
    rows = Rows([swings(), swings(seed=1, shift=3.0)], device=torch.device("cpu"), **how)
    agent = Agent(config, rows, [Member(0), Member(1, Arm((1,), (1.0,), real=1))])
    agent.train(25)
    seen = np.random.default_rng(2).normal(0, 3, (50, 3)).astype(np.float32)
    expected = agent.act(seen)
    policies = frozen(agent.policy())
    assert len(policies) == 2
    assert not np.allclose(expected[0], expected[1])
    for policy, actions in zip(policies, expected, strict=True):
        np.testing.assert_allclose(policy.act(seen), actions, rtol=0, atol=1e-5)
        np.testing.assert_allclose(policy.act(seen[0]), actions[0], rtol=0, atol=1e-5)
        assert policy.act(1e6 * seen).min() >= -3
        assert policy.act(1e6 * seen).max() <= 2.5


@pytest.mark.usefixtures("here")
def test_random_choices_of_discrete_actions(tmp_path):
    rows = roll_out("CartPole-v1", "random", 400)
    write(rows, tmp_path / "poles.npz")
    assert read(tmp_path / "poles.npz").equals(rows)
    assert rows.action.shape == (400,)
    assert rows.action.dtype == np.int64
    assert 0.4 < rows.action.mean() < 0.6
    assert set(rows.action.tolist()) == {0, 1}


@pytest.mark.usefixtures("here")
def test_images_become_columns_with_a_warning(caplog):
    places.register()
    rows = roll_out("Pictures-v0", "random", 3)
    assert rows.observation.shape == (3, 3_072)
    assert "Pictures-v0 observes images of 32 x 32 x 3, which become 3,072 columns" in caplog.text
