"""`synther train`: what it prints, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from synther import datasets, read, write
from synther.cli import train as train_verb
from synther.data.fingerprint import fingerprint

QUICK = (
    *("--updates", "40", "--evaluate-every", "20", "--seeds", "2", "--device", "cpu"),
    *("--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "8"),
)


@pytest.fixture
def train(synther) -> Callable:
    return lambda *arguments: synther("train", *arguments)


def described(folder) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_a_table_for_a_person_and_an_object_for_a_machine(train, tmp_path):
    command = ("td3_bc", "hopper-sac", "--fraction", "0.05", "--out", tmp_path / "run", "--episodes", "1", *QUICK)
    code, text, err = train(*command)
    assert code == 0
    assert "train: 100 % of 40" in err
    assert "updates a second" in err
    assert text.startswith("td3_bc on real rows, 2 seeds: mean ± std")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert [line[:2] for line in lines[1:5]] == [
        ["final", "score"], ["final", "return"], ["best", "score"], ["best", "return"]
    ]  # fmt: skip
    code, text, err = train(*command, "--json", "--quiet")
    found = json.loads(text)
    assert (code, err, found["algorithm"], found["arm"], found["updates"]) == (0, "", "td3_bc", "real", 40)
    final = found["arms"]["real"]["final"]
    assert final["return"]["mean"] == pytest.approx(np.mean(final["returns"]))
    assert final["scores"] == pytest.approx([100 * (r + 20.272305) / (3234.3 + 20.272305) for r in final["returns"]])
    assert lines[1][2:] == f"{final['score']['mean']:.1f} ± {final['score']['std']:.1f} after 40 updates".split()


def test_a_name_brings_the_settings_of_its_data_set(train, rows, tmp_path):
    (tmp_path / "data").mkdir()
    real = replace(rows, timeout=np.arange(300) % 25 == 7, env_id=None)
    write(real, tmp_path / "data" / "hopper-medium.npz")
    write(rows[:50], tmp_path / "synthetic.npz")
    command = ("hopper-medium", "--data", tmp_path / "data", "--synthetic", tmp_path / "synthetic.npz", *QUICK)
    assert train("iql", *command, "--no-evaluate", "--out", tmp_path / "iql").code == 0
    found = described(tmp_path / "iql")
    assert (found["agent"]["deterministic"], found["agent"]["decay_updates"], found["episodes"]) == (True, 40, 10)
    given = read(tmp_path / "synthetic.npz")
    changed = datasets.read("hopper-medium", data=tmp_path / "data").rows_for("iql", given)
    ends = np.flatnonzero(real.terminal | real.timeout)
    episodes = np.split(real.reward.astype(float), ends + 1)[:-1]
    longest = max(map(len, episodes))
    whole = [part for part, end in zip(episodes, ends, strict=True) if real.terminal[end] or len(part) == longest]
    returns = [part.sum() for part in whole]
    np.testing.assert_allclose(changed.reward, given.reward * (1000 / np.ptp(returns)), rtol=1e-5)
    assert found["synthetic"]["synthetic"] == {"rows": fingerprint(changed)}
    other = ("--agent.deterministic", "False", "--episodes", "3")
    assert train("iql", *command, "--no-evaluate", *other, "--out", tmp_path / "other").code == 0
    found = described(tmp_path / "other")
    assert (found["agent"]["deterministic"], found["episodes"]) == (False, 3)
    assert train("td3_bc", *command, "--no-evaluate", "--out", tmp_path / "td3_bc").code == 0
    assert described(tmp_path / "td3_bc")["synthetic"]["synthetic"] == {"rows": fingerprint(given)}
    code, _, err = train("td3_bc", *command, "--out", tmp_path / "evaluated")
    assert code == 2
    assert "has 11 observation and 3 action columns, the data 2 and 1" in err


def test_diverged_seeds_are_said(train, data, tmp_path, monkeypatch, caplog):
    def train_all_but_one(agent, updates: int) -> None:
        agent.updates += updates
        agent._round.losses["actor"][1] = float("nan")

    monkeypatch.setattr("synther.agents.agent.Agent.train", train_all_but_one)
    code, text, _ = train("bc", data, "--out", tmp_path / "run", "--no-evaluate", *QUICK)
    assert code == 0
    assert "1 seed; excluded from the mean" in text
    assert "seed 1 of arm 'real' has diverged after 20 updates" in caplog.text


def test_an_environment_that_is_not_there(train, data, tmp_path, caplog):
    code, text, _ = train("bc", data, "--out", tmp_path / "run", *QUICK)
    assert code == 0
    assert "training without evaluation: 'Made-v0' is not an environment" in caplog.text
    assert "evaluation" in text
    caplog.clear()
    assert train("bc", data, "--out", tmp_path / "quiet", "--no-evaluate", *QUICK).code == 0
    assert "without evaluation" not in caplog.text


def test_synthetic_rows_of_a_file_a_model_and_an_augmentation(train, data, model, rows, tmp_path):
    write(rows[:100], tmp_path / "synthetic.npz")
    for name, options, arms in (
        ("file", ("--synthetic", tmp_path / "synthetic.npz"), {"synthetic": {"synthetic": 1.0}}),
        ("half", ("--synthetic", tmp_path / "synthetic.npz", "--ratio", "0.5"),
         {"mixed": {"synthetic": 0.5, "real": 0.5}}),
        ("model", ("--synthetic", model, "--samples", "30"), {"synthetic": {"synthetic": 1.0}}),
        ("noise", ("--augment", "dynamics", "--samples", "30", "--ratio", "0.25"),
         {"mixed": {"synthetic": 0.25, "real": 0.75}}),
    ):  # fmt: skip
        code, out, _ = train("td3_bc", data, "--out", tmp_path / name, *options, *QUICK)
        assert code == 0
        assert (" (dynamics noise)" in out) == (name == "noise")
        assert described(tmp_path / name)["arms"] == arms
    assert described(tmp_path / "model")["synthetic"]["synthetic"]["samples"] == 30
    assert described(tmp_path / "noise")["synthetic"]["synthetic"]["augmentation"] == "dynamics"


def test_no_synthetic_rows_are_drawn_where_none_are_wanted(train, data, model, tmp_path):
    command = (data, "--synthetic", model, "--ratio", "0", "--no-evaluate", *QUICK)
    assert train("bc", *command, "--out", tmp_path / "run").code == 0
    found = described(tmp_path / "run")
    assert (found["arms"], found["synthetic"]) == ({"real": {"real": 1.0}}, {})
    assert not (tmp_path / "run" / "synthetic.npz").exists()
    assert train("bc", *command, "--samples", "0", "--out", tmp_path / "other").code == 2


def test_a_model_at_home(train, data, model, tmp_path, monkeypatch):
    """A shell leaves the ~ of `--synthetic=~/model` as it is."""
    monkeypatch.setenv("HOME", str(model.parent))
    command = (data, f"--synthetic=~/{model.name}", "--samples", "20", "--no-evaluate", *QUICK)
    assert train("bc", *command, "--out", tmp_path / "run").code == 0


def test_options_of_an_algorithm(train, data, tmp_path):
    code, out, _ = train("iql", "--help")
    assert re.search(r"--no-evaluate .*\(default: False\)", out)
    assert code == 0
    assert "--agent.expectile" in out
    assert "--agent.alpha" not in out
    assert train("iql", data, "--out", tmp_path / "one", *QUICK).code == 0
    assert described(tmp_path / "one")["agent"]["decay_updates"] == 40  # the rate falls over the whole training
    assert train("iql", data, "--out", tmp_path / "two", *QUICK, "--agent.decay-updates", "1K").code == 0
    assert described(tmp_path / "two")["agent"]["decay_updates"] == 1000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ratio", "0.5"), "--ratio mixes real rows with others: give --synthetic or --augment too"),
        (("--augment", "additive", "--ratio", "1.5"), "--ratio must lie in [0, 1], got 1.5"),
        (("--augment", "additive", "--ratio", "nan"), "--ratio must lie in [0, 1], got nan"),
        (("--augment", "additive", "--synthetic", "x.npz"), "both say what to train on: choose one"),
        (("--augment", "additive", "--samples", "0"), "the number of samples must be a whole number and at least 1"),
        (("--samples", "5M"), "--samples is for a model (--synthetic MODEL.safetensors) or --augment"),
        (("--synthetic", "x.npz", "--samples", "5M"), "--samples is for a model"),
        (("--synthetic", "nowhere.npz"), "nowhere.npz"),
        (("--synthetic", "nowhere.safetensors"), "nowhere.safetensors"),
        (("--fraction", "0"), "fraction must lie in (0, 1], got 0.0"),
        (("--seeds", "0"), "seeds must be at least 1, got 0"),
        (("--seed", "-1"), "seed must be at least 0, got -1"),
        (("--updates", "0"), "updates must be at least 1, got 0"),
        (("--evaluate-every", "0"), "evaluate_every must be at least 1, got 0"),
        (("--env-id", "Nowhere-v0"), "'Nowhere-v0' is not an environment of Gymnasium"),
        (("--env-id", "Pendulum-v1", "--no-evaluate"), "--env-id is for the evaluation"),
        (("--env-options", "{}", "--no-evaluate"), "--env-options is for the evaluation"),
        (("--data-seed", "-1", "--fraction", "0.5"), "--data-seed must be a whole number and at least 0, got -1"),
        (("--data", "nowhere"), "nowhere is not a folder"),
        (("--policies", "nowhere.npz"), "nowhere.npz: no such file; expected an archive of policies"),
        (("--device", "tpu"), "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ],
)
def test_bad_input(refused, data, tmp_path, options, text):
    assert text in refused("train", "td3_bc", data, "--out", tmp_path / "run", *options)


def test_an_unknown_algorithm(refused, data, tmp_path):
    err = refused("train", "sac", data, "--out", tmp_path / "run")
    assert "'sac': expected one of bc, td3_bc, " in err


def test_discrete_actions(refused, rows, tmp_path):
    write(replace(rows, action=np.arange(300) % 2, action_space=None), tmp_path / "discrete.npz")
    assert "are discrete" in refused("train", "td3_bc", tmp_path / "discrete.npz", "--out", tmp_path / "run")


def test_options_of_the_environment(train, refused, tmp_path):
    command = ("bc", "hopper-sac", "--fraction", "0.05", "--episodes", "1", *QUICK)
    assert train(*command, "--env-options", '{"max_episode_steps": 3}', "--out", tmp_path / "run").code == 0
    assert described(tmp_path / "run")["env_options"] == {"max_episode_steps": 3}
    assert json.loads((tmp_path / "run" / "result.json").read_text())["arms"]["real"]["final"]["scores"] is None
    for wrong, says in (
        ('{"max_epsiode_steps": 3}', "unexpected keyword argument 'max_epsiode_steps'"),
        ('{"env_id": "x"}', "unexpected keyword argument 'env_id'"),
        ('{"id": "x"}', "multiple values for argument 'id'"),
        *((wrong, "--env-options must be a JSON object") for wrong in ("3", "{", "max_episode_steps=3")),
    ):
        assert says in refused("train", *command, "--env-options", wrong, "--out", tmp_path / "other", "--quiet")


def test_another_seed_trains_on_the_same_rows(train, data, tmp_path):
    command = ("bc", data, "--fraction", "0.5", "--augment", "additive", "--samples", "50", "--no-evaluate", *QUICK)
    for name, more in (("a", ()), ("b", ("--seed", "2")), ("c", ("--data-seed", "1"))):
        assert train(*command, *more, "--out", tmp_path / name).code == 0
    rows, others, third = (
        {key: described(tmp_path / name)[key] for key in ("data", "synthetic")} for name in ("a", "b", "c")
    )
    assert rows == others
    assert rows["data"] != third["data"]
    assert rows["synthetic"] != third["synthetic"]


def test_other_options_are_refused(train, refused, data, tmp_path):
    command = ("bc", data, "--out", tmp_path / "run", "--no-evaluate", *QUICK)
    assert train(*command).code == 0
    assert "holds a run with another seed (0, not 1)" in refused("train", *command, "--seed", "1")


def test_arguments_that_are_missing_or_out_of_range(train, data, tmp_path):
    code, _, err = train("td3_bc", data)
    assert code == 2
    assert "--out" in err
    code, _, err = train("td3_bc", data, "--out", tmp_path / "run", "--agent.batch-size", "0")
    assert code == 2
    assert "agent.batch_size must be at least 1, got 0" in err


def test_the_algorithm_is_no_value_of_an_option():
    assert train_verb._parse(["--out", "bc", "--json", "td3_bc", "F", "--agent.alpha", "1"])[1] == {"alpha": 1}
