"""`synther paper`: what it lists, runs, shows and refuses."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from synther.children import Children
from synther.experiments.specs import OfflineRun
from synther.paper import EXPERIMENTS
from synther.paper.experiment import Cell, Experiment, Figure

pytestmark = pytest.mark.usefixtures("no_processes")

SMALL = {"width": 8, "depth": 1, "batch_size": 8}
HOW = {"fraction": 0.01, "agent": SMALL, "updates": 20, "evaluate_every": 10, "episodes": 1}
REAL = OfflineRun("hopper-bc", "hopper-sac", "bc", {"real": {"real": 1.0}}, **HOW)
LOST = replace(REAL, name="walker2d-bc", data="walker2d-medium")
EXAMPLE = Experiment(
    "example",
    "",
    "two small runs",
    (REAL, LOST),
    {run.data: {"BC": Cell(run.name, "real", Figure(12.3, 4.5))} for run in (REAL, LOST)},
)


@pytest.fixture
def paper(synther, monkeypatch, tmp_path):
    """The command, with a small experiment more and no data but what ships with the package."""
    monkeypatch.setitem(EXPERIMENTS, "example", EXAMPLE)
    monkeypatch.setenv("SYNTHER_CACHE", str(tmp_path / "cache"))
    return lambda *arguments: synther("paper", *arguments)


def test_the_list(paper):
    code, text, err = paper("list")
    assert (code, err) == (0, "")
    lines = [line.split() for line in text.splitlines()]
    assert ["full_eval", "paper", "42"] in [line[:3] for line in lines]
    assert ["mixed-subsample", "ours", "2"] in [line[:3] for line in lines]
    assert ["online", "paper", "18"] in [line[:3] for line in lines]
    found = json.loads(paper("list", "--json").out)
    assert found.keys() == EXPERIMENTS.keys()
    assert found["agents"]["runs"][0]["data"] == "halfcheetah-medium"


def test_run_and_table(paper, tmp_path):
    out = tmp_path / "out"
    command = ("run", "example", "--out", out, "--seeds", "2", "--device", "cpu", "--workers", "1", "--quiet")
    code, text, err = paper(*command)
    assert code == 2
    assert err == "synther: 1 of 2 runs are not finished: walker2d-bc\n"
    assert re.search(r"hopper-bc +finished in \d+ s", text)
    assert "walker2d-medium" in text  # why it is not
    code, text, _ = paper(*command, "--only", "hopper", "--json")
    assert code == 0
    (outcome,) = json.loads(text)["runs"]
    assert (outcome["name"], outcome["was_done"], outcome["error"]) == ("hopper-bc", True, None)
    code, text, err = paper("table", "example", "--out", out)
    assert (code, err) == (0, "")
    assert "two small runs; 1 of 2 runs are finished" in text
    assert "seeds 2 instead of 8. Runs: hopper-bc." in text
    assert "- (12.3 ± 4.5)" in text
    found = json.loads(paper("table", "example", "--out", out, "--json").out)
    result = json.loads((out / "runs" / "hopper-bc" / "training" / "result.json").read_text())
    cell = found["rows"]["hopper-sac"]["BC"]
    assert (cell["mean"], cell["seeds"]) == (result["arms"]["real"]["final"]["score"]["mean"], 2)
    recorded = json.loads((out / "example.json").read_text())["origin"]
    assert recorded["command"] == f"synther paper table example --out {out} --json"
    assert recorded["trained by"].startswith("synther paper run example")
    assert (out / "curves" / "hopper-bc.png").exists()
    code, text, _ = paper("run", "example", "--out", out, "--seeds", "1", "--only", "hopper", "--quiet")
    assert code == 2
    assert "holds a run with other options: seeds (" in text


def test_runs_at_the_same_time(paper, tmp_path, monkeypatch, caplog):
    """Processes have tests of their own: here, what they would be given is worked on at once."""

    def call(children: Children, function: Callable[..., Any], *given: Any) -> Any:
        function, given = pickle.loads(pickle.dumps((function, given)))
        return pickle.loads(pickle.dumps(function(*given)))

    monkeypatch.setattr(Children, "call", call)
    job = replace(REAL, seeds=1, evaluate=False)
    monkeypatch.setitem(EXPERIMENTS, "example", replace(EXAMPLE, jobs=(job, LOST)))
    command = ("run", "example", "--out", tmp_path / "out", "--device", "cpu", "--parallel", "2")
    code, _, err = paper(*command, "--updates", "40")
    assert (code, err.splitlines()[-1]) == (2, "synther: 1 of 2 runs are not finished: walker2d-bc")
    assert f"{job.name}: finished in " in caplog.text
    assert (tmp_path / "out" / "runs" / job.name / "training" / "result.json").exists()
    code, text, _ = paper(*command, "--updates", "40", "--only", "hopper", "--json")
    assert (code, [one["was_done"] for one in json.loads(text)["runs"]]) == (0, [True])


def test_every_action_has_the_same_help(paper):
    assert paper("wrong").code == 2
    assert paper().code == 2
    for action in ("run", "table", "list"):
        code, text, _ = paper(action, "--help")
        assert code == 0
        assert text.startswith("usage: synther paper ")
        assert "--evaluate-every" in text
