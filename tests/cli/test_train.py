"""`synther train`: what it prints, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from synther import datasets, read, write
from synther.cli import train as train_verb
from synther.data.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("no_processes")

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
    assert not np.allclose(changed.reward, given.reward)
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
    def train_all_but_one(agent, updates: int, stopped: object) -> None:
        agent.updates += updates
        agent._round.losses["actor"][1] = float("nan")

    monkeypatch.setattr("synther.agents.agent.Agent.train", train_all_but_one)
    code, text, _ = train("bc", data, "--out", tmp_path / "run", "--no-evaluate", *QUICK)
    assert code == 0
    assert "1 seed; excluded from the mean" in text
    assert "seed 1 of arm 'real' has diverged" in caplog.text


def test_held_out_rows_stop_agents_early_in_hindsight(train, tmp_path):
    command = ("td3_bc", "hopper-sac", "--fraction", "0.05", "--out", tmp_path / "run", "--episodes", "1", *QUICK)
    code, text, _ = train(*command, "--holdout", "0.2")
    assert (code, "stopped early score" in text) == (0, True)


def test_n_step_targets(train, refused, tmp_path):
    command = ("td3_bc", "hopper-sac", "--no-evaluate", *QUICK, "--out", tmp_path / "run", "--n-step", "3")
    assert train(*command).code == 0
    found = described(tmp_path / "run")
    assert (found["n_step"], found["agent"]["discount"]) == (3, 0.99)
    assert "n_step" in refused("train", *command[:-1], "2")
    assert "n_step" in refused("train", *command, "--out", tmp_path / "part", "--fraction", "0.1")
    assert "--n-step" in refused("train", *command, "--out", tmp_path / "other", "--synthetic", "hopper-sac")


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


def test_the_algorithm_is_no_value_of_an_option():
    assert train_verb._parse(["--out", "bc", "--json", "td3_bc", "F", "--agent.alpha", "1"])[1] == {"alpha": 1}
