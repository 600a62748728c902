"""Offline training in a folder: measured as it goes, and taken up after any interruption."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from synther import Synthesizer, write
from synther.agents.agent import Agent
from synther.agents.iql import IQLConfig
from synther.agents.policy import load_policy
from synther.agents.td3_bc import TD3BCConfig
from synther.envs.evaluation import Evaluator
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import offline
from synther.experiments.frozen import frozen
from synther.experiments.measurements import Log, Result
from synther.experiments.offline import Plan, train_to
from synther.experiments.sources import Augmented, Given, Material, Sampled

from .pendulum import Guess, Guessed, swings

SMALL = TD3BCConfig(width=8, depth=1, batch=8, learning_rate=1e-2)
PLAN = Plan(SMALL, updates=45, seeds=2, evaluate_every=10, episodes=3, checkpoint_seconds=0, device="cpu")
TIMES = [10, 20, 30, 40, 45]
FILES = ["checkpoint.safetensors", "log.jsonl", "result.json", "run.json"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def saved_every_time(monkeypatch) -> None:
    """However long it takes, against the rest of so short a training."""
    monkeypatch.setattr(offline, "_CHECKPOINT_SHARE", float("inf"))


@pytest.fixture
def quick(monkeypatch) -> None:
    """Evaluations that start no process."""
    monkeypatch.setattr(offline, "Evaluator", Guess)


def run(folder: Path, plan: Plan = PLAN, material: Material | None = None, progress=False):
    return train_to(plan, material or Material(swings()), folder, progress=progress)


def logged(folder: Path) -> list[dict]:
    """What was measured, apart from the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def same(one: Path, other: Path) -> bool:
    tensors = [load_file(folder / "checkpoint.safetensors") for folder in (one, other)]
    assert tensors[0].keys() == tensors[1].keys()
    equal = all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    return equal and logged(one) == logged(other) and files(one) == files(other)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(offline, "Evaluator", Guess)
        run(folder)
    return folder


@pytest.fixture
def done(finished, quick) -> Path:
    """A run that nothing has stopped, and others like it to be begun."""
    return finished


def test_evaluated_in_its_environment(tmp_path):
    plan = replace(PLAN, updates=15, workers=1)
    result = run(tmp_path / "run", plan)
    assert files(tmp_path / "run") == FILES
    lines = logged(tmp_path / "run")
    assert [line["updates"] for line in lines] == [10, 15]
    policies = frozen(load_policy(tmp_path / "run" / "checkpoint.safetensors"))
    with Evaluator("Pendulum-v1", [0, 1], episodes=3, workers=1) as evaluator:
        expected = evaluator.evaluate(policies, number=2).returns
    assert lines[-1]["returns"] == expected.tolist()
    assert lines[-1]["scores"] is None
    assert result.final("real").returns == pytest.approx(expected.mean(1))
    assert Result.from_json(json.loads((tmp_path / "run" / "result.json").read_text())) == result


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


class Stopped(Exception):
    pass


class StopAt:
    """A progress display that brings the work down after so many updates."""

    def __init__(self, place: int) -> None:
        self.place = place

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0):
        self.now, self.start, self.done = name, start, start
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        if self.now == "train" and self.done >= self.place:
            raise Stopped


@pytest.mark.parametrize(("places", "kept"), [([10], 0), ([30, 40], 30), ([45], 40), ([20, 20, 45], 40)], ids=str)
def test_stopped_while_it_trains(done, places, kept, tmp_path):
    for place in places:
        with pytest.raises(Stopped):
            run(tmp_path / "run", progress=StopAt(place))
        assert not (tmp_path / "run" / "result.json").exists()
    rest = StopAt(1_000)
    run(tmp_path / "run", progress=rest)
    assert (rest.start, rest.done) == (kept, 45)
    assert same(done, tmp_path / "run")


@pytest.mark.parametrize(
    ("owner", "name", "after", "call"),
    [
        *((Guessed, "result", False, call) for call in (1, 3)),
        *((Log, "append", after, call) for after in (False, True) for call in (1, 4)),
        *((Agent, "save", after, call) for after in (False, True) for call in (1, 3, 5)),
        (offline, "write_object", False, 1),
    ],
    ids=str,
)
def test_stopped_anywhere_else(done, owner, name, after, call, tmp_path, monkeypatch):
    whole, calls = getattr(owner, name), 0

    def stopping(*given):
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Stopped
        answer = whole(*given)
        if calls == call:
            raise Stopped
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, stopping)
        with pytest.raises(Stopped):
            run(tmp_path / "run")
    run(tmp_path / "run")
    assert same(done, tmp_path / "run")


def test_without_a_recent_checkpoint_it_goes_back_further(done, tmp_path):
    seldom = replace(PLAN, checkpoint_seconds=1e9)
    with pytest.raises(Stopped):
        run(tmp_path / "run", seldom, progress=StopAt(40))
    assert [line["updates"] for line in logged(tmp_path / "run")] == [10, 20]  # and one was under way
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    run(tmp_path / "run", seldom)
    assert same(done, tmp_path / "run")


KILLER = """
import os, random, signal, sys, time
from contextlib import contextmanager
from pathlib import Path
import torch
from synther import read
from synther.experiments import offline
from synther.agents.td3_bc import TD3BCConfig
from synther.experiments.offline import Plan, train_to
from synther.experiments.sources import Material

class Slow:
    @contextmanager
    def phase(self, name, total, start=0):
        yield self
    def advance(self, amount, note=""):
        time.sleep(0.05)

torch.set_num_threads(1)
offline._CHECKPOINT_SHARE = float("inf")
material, folder = Material(read(sys.argv[1])), Path(sys.argv[2])
plan = {plan}
kills = 0
while True:
    worker = os.fork()
    if not worker:
        train_to(plan, material, folder, progress=Slow())
        os._exit(0)
    time.sleep(random.uniform(0.02, 0.3 + 0.2 * kills))
    os.kill(worker, signal.SIGKILL)
    status = os.waitpid(worker, 0)[1]
    if os.WIFEXITED(status):
        print(kills, os.WEXITSTATUS(status))
        break
    kills += 1
"""


def test_killed_again_and_again_it_still_ends_with_the_same_files(tmp_path):
    plan = replace(PLAN, evaluate=False, updates=150)
    rows = swings(env_id=None)  # nothing to import first, in every life
    run(tmp_path / "done", plan, Material(rows))
    write(tmp_path / "real.npz", rows)
    script = KILLER.replace("{plan}", repr(plan))
    command = [sys.executable, "-c", script, str(tmp_path / "real.npz"), str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    kills, code = map(int, ended.stdout.split())
    assert kills >= 2
    assert code == 0, ended.stderr
    assert same(tmp_path / "done", tmp_path / "run")


def test_a_finished_run_does_nothing_again(done, monkeypatch):
    before = {file: file.stat().st_mtime_ns for file in done.iterdir()}
    monkeypatch.setattr(Agent, "train", pytest.fail)
    monkeypatch.setattr(Guess, "start", pytest.fail)
    assert run(done).final("real").updates == 45
    assert {file: file.stat().st_mtime_ns for file in done.iterdir()} == before


@pytest.mark.parametrize(
    ("plan", "material", "named"),
    [
        ({"updates": 100}, {}, "updates"),
        ({"seeds": 3}, {}, "seeds"),
        ({"seed": 1}, {}, "seed"),
        ({"episodes": 2}, {}, "episodes"),
        ({"evaluate": False}, {}, "env_id"),
        ({"agent": replace(SMALL, alpha=1.0)}, {}, "agent"),
        ({"agent": IQLConfig(width=8)}, {}, "algorithm, agent"),
        ({}, {"real": swings(seed=1)}, "data"),
        ({}, {"synthetic": Given(swings(seed=1))}, "synthetic, arms"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_options_are_refused(done, plan, material, named):
    before = {file: file.stat().st_mtime_ns for file in done.iterdir()}
    with pytest.raises(ConfigError, match=f"holds a run with another {named}: choose another --out"):
        run(done, replace(PLAN, **plan), Material.mixed(**{"real": swings(), **material}))
    assert {file: file.stat().st_mtime_ns for file in done.iterdir()} == before


def test_synthetic_rows_are_scaled_by_the_real_ones(tmp_path, quick):
    real = swings()
    run(tmp_path / "run", PLAN, Material.mixed(real, Given(swings(seed=1, shift=5.0))))
    scales = load_policy(tmp_path / "run" / "checkpoint.safetensors").scales
    np.testing.assert_allclose(scales.mean, [real.observation.mean(0)] * 2, atol=1e-6)
    np.testing.assert_allclose(scales.deviation, [real.observation.std(0) + 1e-3] * 2, rtol=1e-5)


def test_arms_train_together_as_they_do_alone(done, tmp_path):
    source = Given(swings(seed=1))
    arms = {"real": {"real": 1.0}, "half": {"synthetic": 0.5, "real": 0.5}}
    together = run(tmp_path / "both", PLAN, Material(swings(), {"synthetic": source}, arms))
    run(tmp_path / "half", PLAN, Material.mixed(swings(), source, 0.5))
    returns = [line["returns"] for line in logged(tmp_path / "both")]
    np.testing.assert_allclose([rows[:2] for rows in returns], [line["returns"] for line in logged(done)], rtol=1e-3)
    alone = [line["returns"] for line in logged(tmp_path / "half")]
    np.testing.assert_allclose([rows[2:] for rows in returns], alone, rtol=1e-3)
    assert together.final("half").returns == pytest.approx(np.mean(alone[-1], axis=1), rel=1e-3)
    assert together.final("half").returns != pytest.approx(together.final("real").returns, rel=1e-2)


def test_an_augmentation(tmp_path, quick):
    run(tmp_path / "run", PLAN, Material.mixed(swings(), Augmented("additive", swings(), 40)))
    assert list(json.loads((tmp_path / "run" / "run.json").read_text())["arms"]) == ["synthetic"]
    assert files(tmp_path / "run") == FILES


def test_a_model_samples_once(tmp_path, quick, monkeypatch):
    settings = {"network": {"width": 16, "depth": 1, "embedding": 8}, "fit": {"steps": 20, "evaluate_every": 10}}
    model = Synthesizer("laptop", **settings, sampler={"steps": 2}).fit(swings(), progress=False)
    model.save(tmp_path / "model.safetensors")
    material = Material.mixed(swings(), Sampled(tmp_path / "model.safetensors", 50, device="cpu"))
    with pytest.raises(Stopped):
        run(tmp_path / "run", material=material, progress=StopAt(45))
    monkeypatch.setattr(Synthesizer, "sample_to", pytest.fail)
    run(tmp_path / "run", material=material)
    assert files(tmp_path / "run") == [*FILES, "synthetic.npz"]
    with pytest.raises(FormatError, match="nowhere"):
        Material.mixed(swings(), Sampled(tmp_path / "nowhere.safetensors", 50))


@pytest.mark.parametrize(
    ("env_id", "said"),
    [(None, "the data names no environment"), ("Made-v0", "training goes without evaluation: 'Made-v0' is not")],
)
def test_without_an_environment_it_trains_and_says_so(env_id, said, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        result = run(tmp_path / "run", PLAN, Material(swings(env_id=env_id)))
    assert said in caplog.text
    assert result.final("real") is None
    assert [(line["updates"], line["returns"]) for line in logged(tmp_path / "run")] == [(t, None) for t in TIMES]


def test_bounds_come_from_the_environment_where_the_data_has_none(tmp_path):
    rows = replace(swings(), action_space=None)
    run(tmp_path / "run", replace(PLAN, evaluate=False), Material(rows))
    scales = load_policy(tmp_path / "run" / "checkpoint.safetensors").scales
    assert (scales.low.tolist(), scales.high.tolist()) == ([-2.0], [2.0])
    with pytest.raises(DataError, match="actions of table 0 leave the bounds"):
        run(tmp_path / "other", PLAN, Material(replace(rows, env_id=None)))
    assert not (tmp_path / "other").exists()


def test_what_cannot_succeed_does_not_begin(tmp_path):
    for plan, text in (
        ({"env_id": "Nowhere-v0"}, "'Nowhere-v0' is not an environment of Gymnasium"),
        ({"env_id": "CartPole-v1"}, "expected a Box of one axis"),
        ({"env_id": "MountainCarContinuous-v0"}, "has 2 observation and 1 action columns, the data 3 and 1"),
    ):
        with pytest.raises(DataError, match=text):
            run(tmp_path / "run", replace(PLAN, **plan))
    mixed = Material.mixed(swings(), Given(swings()), 0.01)
    with pytest.raises(ConfigError, match=r"a share of 0\.01 of 8 rows is none of table 1"):
        run(tmp_path / "run", PLAN, mixed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["updates", "seeds", "evaluate_every", "episodes", "workers"])
def test_plans_out_of_range(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        Plan(**{name: 0})
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        Plan(seed=-1)
