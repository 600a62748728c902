"""Offline training in a folder: measured as it goes, and taken up after any interruption."""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer
from synther.agents.agent import Agent
from synther.agents.policy import load_policy
from synther.collect.rows import frozen
from synther.data.spaces import Box
from synther.envs.evaluation import Evaluator
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import offline
from synther.experiments.results import Result
from synther.experiments.sources import Augmented, Given, Sampled, TrainingData
from synther.experiments.specs import OfflineRun

from ..support.watch import Stopped, Watch
from .pendulum import Guessed, swings
from .trainings import FILES, OPTIONS, PLAN, SMALL, TIMES, files, logged, run, same

pytestmark = pytest.mark.usefixtures("saved_every_time")


def test_evaluated_in_its_environment(tmp_path):
    plan = replace(PLAN, updates=15, workers=1)
    result = run(tmp_path / "run", plan)
    assert files(tmp_path / "run") == FILES
    lines = logged(tmp_path / "run")
    assert [line["updates"] for line in lines] == [10, 15]
    policies = frozen(load_policy(tmp_path / "run" / "checkpoint.safetensors"))
    with Evaluator("Pendulum-v1", [0, 1], episodes=3, workers=1) as evaluator:
        expected = evaluator.evaluate(policies, number=15).returns
    assert lines[-1]["returns"] == expected.tolist()
    assert lines[-1]["scores"] is None
    assert result.final("real").returns == pytest.approx(expected.mean(1))
    assert Result.from_json(json.loads((tmp_path / "run" / "result.json").read_text())) == result


def test_options_of_the_environment(tmp_path):
    plan = replace(PLAN, updates=10, episodes=1, workers=1, env_options={"max_episode_steps": 5, "g": 0.0})
    run(tmp_path / "run", plan)
    (line,) = logged(tmp_path / "run")
    # Without gravity, five steps cost at most pi^2 + 0.1 * 8^2 + 0.001 * 2^2 each.
    assert all(-5 * 16.3 < total <= 0 for (total,) in line["returns"])
    for other in ({}, {"max_episode_steps": 6, "g": 0.0}):
        with pytest.raises(ConfigError, match="holds a run with another env_options"):
            run(tmp_path / "run", replace(plan, env_options=other))
    with pytest.raises(ConfigError, match="env_options must be what JSON can hold"):
        replace(plan, env_options={"maze": {1, 2}})


def test_options_of_the_environment_that_the_data_tells(tmp_path, quick):
    told = {"max_episode_steps": 5, "g": 0.0}
    given = TrainingData(replace(swings(), env_options=told))
    for name, plan in (
        ("data", PLAN),
        ("asked", replace(PLAN, env_options={"g": 1.0})),
        ("other", replace(PLAN, env_id="Pendulum-v1")),
    ):
        run(tmp_path / name, plan, given)
    found = [
        json.loads((tmp_path / name / "run.json").read_text())["env_options"] for name in ("data", "asked", "other")
    ]
    assert found == [told, {"g": 1.0}, {}]
    run(tmp_path / "none", replace(PLAN, env_options={}), given)  # as was asked for
    assert json.loads((tmp_path / "none" / "run.json").read_text())["env_options"] == {}


def test_what_the_time_went_into_and_where(tmp_path, quick, monkeypatch):
    for owner, name in ((Guessed, "result"), (Agent, "save")):
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, whole=whole: (time.sleep(0.02), whole(*given))[1])
    with pytest.raises(Stopped):
        run(tmp_path / "run", progress=Watch(("train", 30)))  # two checkpoints, and an evaluation or two
    result = run(tmp_path / "run")
    parts = result.seconds_of
    assert sum(parts.values()) == pytest.approx(result.seconds)
    assert 0.1 <= parts["checkpoints"] <= 0.4  # of both lives
    assert parts["training"] > 0
    assert result.updates_per_second == pytest.approx(45 / result.seconds)
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert kept["seconds_of"] == parts
    assert kept["origin"].keys() == {"synther", "machine", "python"}
    seconds = [json.loads(line)["seconds"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    assert seconds[-1] < result.seconds


def test_the_log_has_a_line_a_measurement(done):
    lines = logged(done)
    assert [line["updates"] for line in lines] == TIMES
    for line in lines:
        assert np.shape(line["returns"]) == np.shape(line["scores"]) == (2, 3)
        assert line["losses"].keys() == {"critic", "actor"}
        assert all(len(values) == 2 for values in line["losses"].values())
    seconds = [json.loads(line)["seconds"] for line in (done / "log.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)


def test_it_trains_as_the_agent_alone_does(done):
    agent = offline.Agent(
        SMALL,
        offline.Rows([swings()], device=torch.device("cpu"), low=[-2.0], high=[2.0]),
        [offline.Member(0), offline.Member(1)],
    )
    agent.train(45)
    seen = np.zeros((1, 3), np.float32)
    assert np.array_equal(load_policy(done / "checkpoint.safetensors").act(seen), agent.act(seen))


def test_same_seed_same_result_and_others_differ(done, tmp_path):
    run(tmp_path / "again", replace(PLAN, workers=3, checkpoint_seconds=1e9))
    assert same(done, tmp_path / "again")
    run(tmp_path / "next", replace(PLAN, seed=1, seeds=1))
    one, other = logged(done)[-1], logged(tmp_path / "next")[-1]
    np.testing.assert_allclose(other["returns"], one["returns"][1:], rtol=1e-4)
    assert not np.allclose(one["returns"][0], one["returns"][1])


@pytest.mark.parametrize(
    ("plan", "material", "named"),
    [
        ({"updates": 40}, {}, "updates"),
        ({"updates": 75, "seeds": 3}, {}, "updates .*, seeds"),
        ({"seeds": 3}, {}, "seeds"),
        ({"seed": 1}, {}, "seed"),
        ({"episodes": 2}, {}, "episodes"),
        ({"evaluate": False}, {}, "env_id"),
        ({"agent": OPTIONS | {"alpha": 1.0}}, {}, "agent"),
        ({"algorithm": "iql", "agent": {"width": 8}}, {}, "algorithm .*, agent"),
        ({}, {"real": swings(seed=1)}, "data"),
        ({}, {"synthetic": Given(swings(seed=1))}, "synthetic, arms"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_options_are_refused(done, plan, material, named):
    before = {file: file.stat().st_mtime_ns for file in done.iterdir()}
    with pytest.raises(ConfigError, match=f"holds a run with another {named}.*: choose another --out"):
        run(done, replace(PLAN, **plan), TrainingData.mixed(**{"real": swings(), **material}))
    assert {file: file.stat().st_mtime_ns for file in done.iterdir()} == before


@pytest.mark.parametrize("every", [9, 45, 100])
def test_how_often_it_was_evaluated_changes_nothing_of_the_end(done, every, tmp_path, quick):
    run(tmp_path / "run", replace(PLAN, evaluate_every=every))
    assert logged(tmp_path / "run")[-1] == logged(done)[-1]


def test_more_updates_go_on_where_it_ended(done, tmp_path, quick):
    """As if that had been asked for at once: what was measured at the old end is forgotten, as it is no time of it."""
    longer = replace(PLAN, updates=75)
    run(tmp_path / "at once", longer)
    shutil.copytree(done, tmp_path / "run")
    began = (tmp_path / "run" / "run.json").stat().st_mtime
    with pytest.raises(Stopped):
        run(tmp_path / "run", longer, progress=Watch(("train", 60)))
    assert Result.read(tmp_path / "run" / "result.json").updates == 45  # which it has still
    rest = Watch()
    assert run(tmp_path / "run", longer, progress=rest).updates == 75
    assert rest.start == 50
    assert same(tmp_path / "at once", tmp_path / "run")
    assert (tmp_path / "run" / "run.json").stat().st_mtime == began
    with pytest.raises(ConfigError, match=r"another updates \(75, not 45\)"):
        run(tmp_path / "run")


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


def test_an_augmentation(tmp_path, quick):
    run(tmp_path / "run", PLAN, TrainingData.mixed(swings(), Augmented("additive", swings(), 40)))
    assert list(json.loads((tmp_path / "run" / "run.json").read_text())["arms"]) == ["synthetic"]
    assert files(tmp_path / "run") == FILES


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
    with caplog.at_level(logging.WARNING):
        result = run(tmp_path / "run", PLAN, TrainingData(swings(env_id=env_id)))
    assert said in caplog.text
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
    assert "bounds of the data are [-0.5] and [0.5], those of Pendulum-v1 are [-2.0] and [2.0]" in caplog.text
    caplog.clear()
    monkeypatch.setattr(offline, "action_box", lambda env, env_id: (np.full(1, -np.inf), np.full(1, np.inf)))
    run(tmp_path / "endless", PLAN, TrainingData(replace(halved, action_space=None)))
    assert "neither Pendulum-v1 nor the data has action bounds" in caplog.text
    scales = load_policy(tmp_path / "endless" / "checkpoint.safetensors").scales
    assert (scales.low.tolist(), scales.high.tolist()) == ([-1.0], [1.0])


def test_synthetic_rows_out_of_bounds_leave_no_folder(tmp_path):
    wide = replace(swings(), action=3 * swings().action, action_space=None)
    with pytest.raises(DataError, match=r"actions of the synthetic rows leave the bounds \[-2\.0\] and \[2\.0\]"):
        run(tmp_path / "run", PLAN, TrainingData.mixed(swings(), Given(wide)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"arms": []}'])
def test_a_damaged_result_is_named(done, tmp_path, content):
    shutil.copytree(done, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(content)
    with pytest.raises(ConfigError, match=r"result\.json is not a result \(.*\): remove it"):
        run(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    run(tmp_path / "run")
    assert same(done, tmp_path / "run")


def test_what_cannot_succeed_does_not_begin(tmp_path):
    for plan, text in (
        ({"env_id": "Nowhere-v0"}, "'Nowhere-v0' is not an environment of Gymnasium"),
        ({"env_id": "CartPole-v1"}, "expected a Box"),
        ({"env_id": "MountainCarContinuous-v0"}, "has 2 observation and 1 action columns, the data 3 and 1"),
    ):
        with pytest.raises(DataError, match=text):
            run(tmp_path / "run", replace(PLAN, **plan))
    mixed = TrainingData.mixed(swings(), Given(swings()), 0.01)
    with pytest.raises(ConfigError, match=r"a share of 0\.01 of 8 rows"):
        run(tmp_path / "run", PLAN, mixed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["updates", "seeds", "evaluate_every", "episodes", "workers"])
def test_plans_out_of_range(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        OfflineRun(**{name: 0})
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        OfflineRun(seed=-1)
