"""Evaluations under way: written down in order, waited for only when asked, and what becomes of diverged members."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.policy import load_policy
from synther.agents.rows import Member, Rows
from synther.envs import evaluation
from synther.envs.evaluation import Evaluation, Evaluator
from synther.envs.policies import frozen
from synther.errors import ConfigError, DataError, FormatError, SyntherError
from synther.experiments import offline
from synther.experiments.evaluation import score
from synther.experiments.loop import Evaluations
from synther.experiments.record import Record, Schedule
from synther.experiments.results import Log
from synther.experiments.sources import Augmented, TrainingData
from synther.experiments.spec import Tracked

from ..support.processes import Here
from ..support.watch import Stopped, Watch
from .pendulum import swings
from .trainings import PLAN, SMALL, logged, run

pytestmark = pytest.mark.usefixtures("saved_every_time")


class Players:
    """Their games are over when a test says so."""

    def __init__(self) -> None:
        self.games: list[Game] = []

    def start(self, policies, number: int) -> Game:
        self.games.append(Game(number))
        return self.games[-1]


class Game:
    def __init__(self, number: int) -> None:
        self.number, self.over = number, False

    def done(self) -> bool:
        return self.over

    def result(self) -> Evaluation:
        assert self.over, "it was waited for"
        return Evaluation(self.number, np.full((2, 1), 1.0), np.ones((2, 1), np.int64), None)


def agent_of(config=SMALL) -> Agent:
    return Agent(
        config,
        Rows([swings()], device=torch.device("cpu"), low=[-2.0], high=[2.0], next_actions=True),
        [Member(0), Member(1)],
    )


def test_written_down_in_order_and_never_waited_for(tmp_path):
    players, agent = Players(), agent_of()
    record = Record(tmp_path, Schedule(2, 9), 0, ["real"], [0, 1], Tracked(tensorboard="off"))
    evaluations = Evaluations(players, record)
    for updates in (2, 4, 6):
        agent.train(2)
        evaluations.begin(agent, updates)
        evaluations.collect()
    assert [game.number for game in players.games] == [2, 4, 6]

    def known() -> list[int]:
        times = [2, 4, 6][: len(record.measurements)]
        return [found.updates for found in Log(tmp_path / "log.jsonl", times, again=False).measurements]

    for over, expected in ((1, []), (0, [2, 4]), (2, [2, 4, 6])):  # the second is over first
        players.games[over].over = True
        evaluations.collect()
        assert known() == expected
    assert record.latest == ", real 1.0"
    assert record.has_all(7)
    assert not record.has_all(8)
    evaluations.begin(agent, 8)
    evaluations.wait(1)
    with pytest.raises(AssertionError, match="it was waited for"):
        evaluations.wait(0)


@pytest.fixture
def poison(monkeypatch):
    """Members whose actors are lost after 20 updates."""

    def poison(*members: int) -> None:
        class Poisoned(Agent):
            def train(self, updates: int, *stopped: Any) -> None:
                super().train(updates, *stopped)
                if self.updates >= 20:
                    with torch.no_grad():
                        self.algorithm.actor.weights[list(members)] = np.nan

        monkeypatch.setattr(offline, "Agent", Poisoned)

    return poison


def test_a_run_goes_on_without_a_diverged_member(done, poison, tmp_path, caplog):
    poison(0)
    result = run(tmp_path / "run")
    lines, whole = logged(tmp_path / "run"), logged(done)
    assert lines[0] == whole[0]
    for line, expected in zip(lines[1:], whole[1:], strict=True):
        assert (line["returns"], line["scores"]) == ([None, expected["returns"][1]], [None, expected["scores"][1]])
    assert caplog.text.count("diverged") == 1
    assert "seed 0 of arm 'real'" in caplog.text
    final = result.final("real")
    assert (final.diverged, final.spread_of_returns.seeds) == (1, 1)
    assert final.spread_of_returns.mean == pytest.approx(np.mean(whole[-1]["returns"][1]))
    assert result.diverged == {"real": (0,)}
    with pytest.raises(Stopped):
        run(tmp_path / "again", progress=Watch(("train", 40)))
    run(tmp_path / "again")
    assert [line["returns"] for line in logged(tmp_path / "again")] == [line["returns"] for line in lines]


@pytest.mark.parametrize("evaluate", [True, False])
def test_when_all_have_diverged_it_ends(quick, poison, evaluate, tmp_path):
    poison(0, 1)
    for _ in range(2):  # started again, it says so again
        with pytest.raises(SyntherError, match="all 2 members have diverged"):
            run(tmp_path / "run", replace(PLAN, evaluate=evaluate))
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two arms of two seeds."""
    real = swings()
    noise = Augmented("additive", real, 40)
    material = TrainingData(real, {"noise": noise}, {"real": {"real": 1.0}, "noisy": {"noise": 1.0}})
    folder = tmp_path_factory.mktemp("scoring") / "run"
    run(folder, replace(PLAN, updates=20, seed=3, workers=1), material)
    return folder


def test_the_number_of_a_measurement_gives_its_returns_again(trained):
    found = score(str(trained), number=20, workers=1, progress=False)
    line = logged(trained)[-1]
    assert found.evaluation.returns.tolist() == line["returns"]
    assert (found.env_id, found.env_options, found.seeds, found.unit) == ("Pendulum-v1", {}, (3, 4), "updates")
    means = np.mean(line["returns"], axis=1)
    assert list(found.arms) == ["real", "noisy"]
    assert found.arms["real"].returns == pytest.approx(means[:2])
    assert found.arms["noisy"].returns == pytest.approx(means[2:])
    assert found.arms["noisy"].updates == 20


def test_other_starts_more_episodes_and_another_environment(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "Workers", Here)
    file, how = shutil.copy(trained / "checkpoint.safetensors", tmp_path / "agents.safetensors"), {"episodes": 2}
    with pytest.raises(ConfigError, match="--env-id"):
        score(file, progress=False)  # agents without their run
    options = {"max_episode_steps": 4}
    found = score(file, env_id="Pendulum-v1", env_options=options, progress=False, **how)
    with Evaluator("Pendulum-v1", [3, 4, 3, 4], options=options, **how) as evaluator:
        expected = evaluator.evaluate(frozen(load_policy(file)), 0)
    assert found.evaluation.returns.tolist() == expected.returns.tolist()
    assert found.evaluation.lengths.tolist() == [[4, 4]] * 4
    assert {arm: len(point.returns) for arm, point in found.arms.items()} == {"agents": 4}
    told = found.to_json()
    assert (told["env_options"], told["returns"]) == (options, expected.returns.tolist())


def test_what_cannot_be_evaluated(trained, tmp_path):
    with pytest.raises(DataError, match="Hopper-v5"):
        score(trained, env_id="Hopper-v5", progress=False)
    with pytest.raises(FormatError, match="no such file or folder; expected the --out of `train`"):
        score(tmp_path / "nowhere", progress=False)
    with pytest.raises(FormatError, match=r"has no checkpoint\.safetensors"):
        score(tmp_path, progress=False)
