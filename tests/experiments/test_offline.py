"""Offline training in a folder: measured as it goes, and taken up after any interruption."""

from __future__ import annotations

import json
import logging
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.agents.agent import Agent
from synther.agents.policy import load_policy
from synther.agents.td3_bc import TD3BC, TD3BCConfig
from synther.compute import pick_device
from synther.data.episodes import n_step_rows
from synther.data.spaces import Box
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import loop, offline
from synther.experiments.loop import MOST_UNDER_WAY
from synther.experiments.record import Checkpoints
from synther.experiments.results import Log
from synther.experiments.sources import Given, Sampled, TrainingData
from synther.folder import RunFolder

from ..support.watch import Stopped, Watch
from .pendulum import Guess, Guessed, linked, swings
from .trainings import FILES, PLAN, SMALL, TIMES, files, logged, run, same, stop, stop_at_each

pytestmark = pytest.mark.usefixtures("saved_every_time")


def test_options_of_the_environment_that_the_data_tells(tmp_path, quick):
    told = {"max_episode_steps": 5, "g": 0.0}
    given = TrainingData(replace(swings(), env_options=told))
    asked = [({}, told), ({"env_options": {"g": 1.0}}, {"g": 1.0}), ({"env_options": {}}, {})]
    for number, (changes, expected) in enumerate([*asked, ({"env_id": "Pendulum-v1"}, {})]):
        run(tmp_path / str(number), replace(PLAN, updates=1, **changes), given)
        assert json.loads((tmp_path / str(number) / "run.json").read_text())["env_options"] == expected


def alone(*tables: Transitions, config: TD3BCConfig = SMALL) -> Agent:
    """The agents of a run, trained without it."""
    rows = offline.Rows(tables, device=torch.device("cpu"), low=[-2.0], high=[2.0])
    agent = Agent(config, rows, [offline.Member(0), offline.Member(1)])
    agent.train(45)
    return agent


def acts_as(folder: Path, agent: Agent) -> bool:
    seen = np.zeros((1, 3), np.float32)
    return np.array_equal(load_policy(folder / "checkpoint.safetensors").act(seen), agent.act(seen))


def test_it_trains_as_the_agent_alone_does(done):
    assert run(str(done)).final("real") is not None  # finished already, and named by a string
    assert acts_as(done, alone(swings()))


def test_n_step_rows_are_trained_on_with_the_discount_of_n_steps(tmp_path, quick):
    run(tmp_path / "run", replace(PLAN, n_step=3), TrainingData(linked()))
    rows = n_step_rows(linked(), 3, 0.99, whole=True)
    assert acts_as(tmp_path / "run", alone(rows, config=replace(SMALL, discount=0.99**3)))
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (described["n_step"], described["agent"]["discount"]) == (3, 0.99)


def test_held_out_rows_tell_the_td_error_of_the_critics(tmp_path, quick):
    held_out = swings(7, seed=5)
    told = run(tmp_path / "run", material=TrainingData(swings(), held_out=held_out))
    plain = run(tmp_path / "plain")
    assert told.final("real").returns == plain.final("real").returns  # agents do not learn from held-out rows
    agent = alone(swings(), held_out)
    seen, then = ((part - agent.policy().scales.mean[0].numpy()) / agent.policy().scales.std[0].numpy()
                  for part in (held_out.observation, held_out.next_observation))  # fmt: skip

    def lowest(critics, state, action, member):
        pair = torch.from_numpy(np.hstack([state, action / 2]).astype(np.float32)).repeat(2, 1, 1)
        return critics(pair)[member, :, :, 0].amin(0).detach().numpy()

    for member, found in enumerate(told.final("real").held_out):
        action = agent.act(held_out.next_observation)[member]
        expected = lowest(agent.algorithm.target_critics, then, action, member)
        expected = held_out.reward + SMALL.discount * ~held_out.terminal * expected
        errors = np.abs(expected - lowest(agent.algorithm.critics, seen, held_out.action, member))
        assert found == pytest.approx(errors.mean(), rel=1e-4)
    assert told.stopped("real").held_out == tuple(min(own) for own in zip(
        *(point.held_out for point in told.curves["real"]), strict=True))  # fmt: skip


def test_held_out_rows_need_critics_and_single_steps(tmp_path, quick):
    material = TrainingData(linked(), held_out=linked(20, seed=1))
    for changes, option in (({"algorithm": "bc"}, "TD error"), ({"n_step": 2}, "--holdout")):
        with pytest.raises(ConfigError, match=option):
            run(tmp_path / "run", replace(PLAN, **changes), material)


def test_same_seed_same_result_and_others_differ(done, tmp_path):
    run(tmp_path / "again", replace(PLAN, workers=3, checkpoint_seconds=1e9))
    assert same(done, tmp_path / "again")
    run(tmp_path / "next", replace(PLAN, seed=1, seeds=1))
    one, other = logged(done)[-1], logged(tmp_path / "next")[-1]
    np.testing.assert_allclose(other["returns"], one["returns"][1:], rtol=1e-4)
    assert not np.allclose(one["returns"][0], one["returns"][1])


def test_synthetic_rows_are_scaled_by_the_real_ones(tmp_path, quick):
    real = swings()
    run(tmp_path / "run", PLAN, TrainingData.mixed(real, Given(swings(seed=1, shift=5.0))))
    scales = load_policy(tmp_path / "run" / "checkpoint.safetensors").scales
    np.testing.assert_allclose(scales.mean, [real.observation.mean(0)] * 2, atol=1e-6)
    np.testing.assert_allclose(scales.std, [real.observation.std(0) + 1e-3] * 2, rtol=1e-5)


def test_arms_train_together_as_they_do_alone(done, tmp_path):
    source = Given(swings(seed=1))
    arms = {"real": {"real": 1.0}, "half": {"synthetic": 0.5, "real": 0.5}}
    together = run(tmp_path / "both", PLAN, TrainingData(swings(), {"synthetic": source}, arms))
    run(tmp_path / "half", PLAN, TrainingData.mixed(swings(), source, 0.5))
    returns = [line["returns"] for line in logged(tmp_path / "both")]
    np.testing.assert_allclose([rows[:2] for rows in returns], [line["returns"] for line in logged(done)], rtol=1e-3)
    alone = [line["returns"] for line in logged(tmp_path / "half")]
    np.testing.assert_allclose([rows[2:] for rows in returns], alone, rtol=1e-3)
    assert together.final("half").returns == pytest.approx(np.mean(alone[-1], axis=1), rel=1e-3)
    assert together.final("half").returns != pytest.approx(together.final("real").returns, rel=1e-2)


def test_a_model_samples_once(tmp_path, quick, monkeypatch):
    settings = {"network": {"width": 16, "depth": 1, "embedding": 8}, "fit": {"steps": 20, "evaluate_every": 10}}
    model = Synthesizer("laptop", **settings, sampler={"steps": 2}).fit(swings(), progress=False)
    model.save(tmp_path / "model.safetensors")
    material = TrainingData.mixed(swings(), Sampled(tmp_path / "model.safetensors", 50, device="cpu"))
    with pytest.raises(Stopped):
        run(tmp_path / "run", material=material, progress=Watch(("train", 45)))
    monkeypatch.setattr(Synthesizer, "sample_to", pytest.fail)
    run(tmp_path / "run", material=material)
    assert files(tmp_path / "run") == [*FILES, "synthetic.npz"]
    with pytest.raises(FormatError, match="nowhere"):
        TrainingData.mixed(swings(), Sampled(tmp_path / "nowhere.safetensors", 50))


@pytest.mark.parametrize(
    ("env_id", "said"),
    [(None, "the data names no environment"), ("Made-v0", "training without evaluation: 'Made-v0' is not")],
)
def test_without_an_environment_it_trains_and_says_so(env_id, said, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        result = run(tmp_path / "run", replace(PLAN, seeds=1, device="auto"), TrainingData(swings(env_id=env_id)))
    assert said in caplog.text
    assert f"training 1 agent to {PLAN.updates} updates on {pick_device()}, measured" in caplog.text
    assert result.final("real") is None
    assert [(line["updates"], line["returns"]) for line in logged(tmp_path / "run")] == [(t, None) for t in TIMES]


def test_bounds_come_from_the_environment_where_the_data_has_none(tmp_path):
    rows = replace(swings(), action_space=None)
    run(tmp_path / "run", replace(PLAN, evaluate=False), TrainingData(rows))
    scales = load_policy(tmp_path / "run" / "checkpoint.safetensors").scales
    assert (scales.low.tolist(), scales.high.tolist()) == ([-2.0], [2.0])
    with pytest.raises(DataError, match="actions of the real rows leave the bounds"):
        run(tmp_path / "other", PLAN, TrainingData(replace(rows, env_id=None)))
    assert not (tmp_path / "other").exists()


def test_bounds_that_differ_are_told_and_endless_ones_are_none(tmp_path, quick, caplog, monkeypatch):
    halved = replace(swings(), action=swings().action / 4, action_space=(Box.uniform(-0.5, 0.5, 1),))
    run(tmp_path / "narrow", PLAN, TrainingData(halved))
    assert "action bounds of the data" in caplog.text
    caplog.clear()
    monkeypatch.setattr(offline, "action_box", lambda env, env_id: (np.full(1, -np.inf), np.full(1, np.inf)))
    run(tmp_path / "endless", PLAN, TrainingData(replace(halved, action_space=None)))
    assert "has action bounds" in caplog.text
    scales = load_policy(tmp_path / "endless" / "checkpoint.safetensors").scales
    assert (scales.low.tolist(), scales.high.tolist()) == ([-1.0], [1.0])


def test_synthetic_rows_out_of_bounds_leave_no_folder(tmp_path):
    wide = replace(swings(), action=3 * swings().action, action_space=None)
    with pytest.raises(DataError, match="actions of the synthetic rows leave the bounds"):
        run(tmp_path / "run", PLAN, TrainingData.mixed(swings(), Given(wide)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"arms": []}'])
def test_a_damaged_result_is_named(done, tmp_path, content):
    shutil.copytree(done, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(content)
    with pytest.raises(FormatError, match=r"result\.json"):
        run(tmp_path / "run")


def test_what_cannot_succeed_does_not_begin(tmp_path):
    for env_id in ("Nowhere-v0", "CartPole-v1", "MountainCarContinuous-v0"):  # which has other columns
        with pytest.raises(DataError, match=env_id):
            run(tmp_path / "run", replace(PLAN, env_id=env_id))
    mixed = TrainingData.mixed(swings(), Given(swings()), 0.01)
    with pytest.raises(ConfigError, match=r"a share of 0\.01 of 8 rows"):
        run(tmp_path / "run", PLAN, mixed)
    n_step, small = replace(PLAN, n_step=3), {"width": 8, "batch_size": 8}
    for material, changes in (
        (TrainingData(linked()), {"algorithm": "bc", "agent": small}),
        (TrainingData(linked()), {"algorithm": "rebrac", "agent": small}),
        (TrainingData.mixed(linked(), Given(linked())), {}),
    ):
        with pytest.raises(ConfigError, match="n_step"):
            run(tmp_path / "run", replace(n_step, **changes), material)
    with pytest.raises(DataError, match="n_step"):
        run(tmp_path / "run", n_step, TrainingData(swings()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("places", "kept", "kept_slow"), [([8, 28], 24, 20), ([18, 45], 44, 40)], ids=str)
def test_stopped_between_measurements(done, places, kept, kept_slow, slow, tmp_path, monkeypatch):
    """A checkpoint there waits until evaluations are over, or for the next measurement."""
    monkeypatch.setitem(loop.SHOWN_UPDATES, "cpu", 4)
    monkeypatch.setattr(Guess, "slow", slow)
    for place in places:
        with pytest.raises(Stopped):
            run(tmp_path / "run", progress=Watch(("train", place)))
    rest = Watch()
    run(tmp_path / "run", progress=rest)
    assert (rest.start, rest.done) == (kept_slow if slow else kept, 45)
    assert same(done, tmp_path / "run")


@pytest.mark.parametrize(("slow", "start"), [(False, 16), (True, 0)])
def test_ctrl_c_saves_the_agents_at_the_end_of_the_update(done, slow, start, tmp_path, monkeypatch):
    """Unless evaluations are under way, because the resumed run could not repeat them."""
    calls, update = [], TD3BC.update

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 16:
            signal.raise_signal(signal.SIGINT)
        return update(*given)

    monkeypatch.setattr(TD3BC, "update", interrupted)
    monkeypatch.setattr(Guess, "slow", slow)
    plan = replace(PLAN, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", plan)
    rest = Watch()
    run(tmp_path / "run", plan, progress=rest)
    assert (rest.start, rest.done, len(calls)) == (start, 45, 16 + 45 - start)
    assert same(done, tmp_path / "run")


SAVED = (Agent, "save", True, 1)
STOPS = [
    (Guessed, "result", False, 1),  # a checkpoint is there, and nothing in the log
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (Agent, "save", False, 1),
    SAVED,
    (Guessed, "result", False, 2),
    SAVED,
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (Agent, "save", False, 1),
    SAVED,  # the last update
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (RunFolder, "finish", False, 1),  # all is done but the result
]
"""Whose call, by number, a run is stopped before or after, in the order of time."""


def test_stopped_again_and_again(done, tmp_path):
    assert list(stop_at_each(STOPS, run, tmp_path)) == STOPS
    run(tmp_path)
    assert same(done, tmp_path)


def test_stopped_with_several_evaluations_under_way(done, tmp_path, monkeypatch):
    """Three are when the first checkpoint is due."""
    trained, train = [0], Agent.train

    def counted(agent: Agent, updates: int, *stopped: Any) -> None:
        train(agent, updates, *stopped)
        trained[0] = agent.updates

    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(Agent, "train", counted)
    monkeypatch.setattr(Checkpoints, "are_due", lambda own: trained[0] == 30)
    known = []
    for place in (
        (Guessed, "result", False, 1),
        (Guessed, "result", False, 2),
        (Log, "append", True, 1),
        (Log, "append", True, 2),
        (Agent, "save", False, 1),
        SAVED,
        (Guessed, "result", False, 1),
        (Log, "append", True, 1),
        (Agent, "save", False, 1),
        SAVED,
        (Guessed, "result", False, 1),
        (Log, "append", True, 1),
    ):
        stop(lambda: run(tmp_path), *place)
        known.append(((tmp_path / "checkpoint.safetensors").exists(), len(logged(tmp_path))))
    assert known == [(False, lines) for lines in (0, 1, 1, 2, 2)] + [(True, lines) for lines in (2, 2, 3, 4, 4, 4, 5)]
    run(tmp_path)
    assert same(done, tmp_path)


def test_training_waits_for_players_only_when_they_are_far_behind(done, tmp_path, monkeypatch):
    begun, waited = [], []
    start, result = Guess.start, Guessed.result
    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(Guess, "start", lambda *given: (begun.append(given[2]), start(*given))[1])
    monkeypatch.setattr(Guessed, "result", lambda own: (waited.append((own.number, len(begun))), result(own))[1])
    run(tmp_path / "run", replace(PLAN, checkpoint_seconds=1e9))
    assert begun == TIMES
    assert waited == [(TIMES[0], MOST_UNDER_WAY), *((number, 5) for number in TIMES[1:])]
    assert same(done, tmp_path / "run")
