"""Tables of hand-made online results: returns in their cells, scores where tasks are put together, a picture a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther.experiments.spec import ChangeOptions
from synther.experiments.specs import OnlineRun, Synthetic
from synther.paper.experiment import Cell, Experiment
from synther.paper.tables import RUNS, Table
from synther.plots import curves

from .conftest import finish as finish_run

PLAIN = {task: OnlineRun(f"{task}-sac", f"{task}-v4", steps=1_000, seeds=2) for task in ("hopper", "walker2d")}
MADE = {task: replace(run, name=f"{task}-synther", synthetic=Synthetic()) for task, run in PLAIN.items()}
EXAMPLE = Experiment(
    "example",
    "",
    "two tasks",
    (*PLAIN.values(), *MADE.values()),
    {task: {"SAC": Cell(f"{task}-sac", "sac"), "SynthER": Cell(f"{task}-synther", "sac_synther")} for task in PLAIN},
    contrasts=(("SynthER", "SAC"),),
)


def finish(out: Path, run: OnlineRun, returns: list[float | None], minutes: float = 3.0) -> None:
    """Scores are a hundredth of the returns."""
    scores = [None if value is None else value / 100 for value in returns]
    finish_run(out, run, run.steps, {run.arm: scores}, by=100.0, minutes=minutes)


@pytest.fixture
def out(tmp_path, quick_statistics) -> Path:
    """Where all runs but one are finished."""
    finish(tmp_path, PLAIN["hopper"], [1_000.0, 2_000.0])
    finish(tmp_path, MADE["hopper"], [3_000.0, 3_200.0], minutes=9.0)
    finish(tmp_path, PLAIN["walker2d"], [400.0, 600.0], minutes=4.0)
    return tmp_path


def test_returns_after_steps_that_are_decisions(out):
    table = Table.of(EXAMPLE, out)
    assert table.lines() == [
        ["example", "SAC", "SynthER"],
        ["hopper", "1500.0 ± 500.0", "3100.0 ± 100.0"],
        ["walker2d", "500.0 ± 100.0", "-"],
    ]
    assert table.notes() == [
        "Mean ± standard deviation of the final return over 2 seeds after 1,000 steps.",
        "A step is one decision in the environment of each seed; no action is repeated.",
        "Mean minutes per run, with all seeds trained together: SAC 3.5, SynthER 9.0.",
    ]
    assert table.comparisons == ()
    assert table.summary is None  # one task is not enough
    (out / RUNS / "hopper-synther" / "training" / "result.json").unlink()
    assert list(Table.of(EXAMPLE, out).summary.columns) == ["SAC"]  # a column that is not begun holds up nothing


def test_tasks_are_put_together_by_their_scores(out):
    finish(out, MADE["walker2d"], [500.0, 700.0])
    table = Table.of(EXAMPLE, out)
    (found,) = table.comparisons
    assert (found.tasks, found.seeds, found.improvement.value) == (2, 2, 1.0)
    assert found.iqm_of_one.value == pytest.approx(np.mean([30, 32, 5, 7]))
    assert table.summary is not None
    assert (table.summary.tasks, table.summary.seeds) == (2, 2)
    means = {column: figures.mean.value for column, figures in table.summary.columns.items()}
    assert means == pytest.approx({"SAC": np.mean([10, 20, 4, 6]), "SynthER": np.mean([30, 32, 5, 7])})
    assert str(table.summary).startswith(
        "Interquartile mean of the score, 2 tasks, 2 seeds: SAC 10.0 [0.0, 1.0] (mean 10.0 [0.0, 1.0], median "
    )
    assert str(table.summary) in table.notes()


def test_seeds_that_diverged_and_shorter_runs_are_told(out):
    finish(out, MADE["walker2d"].changed(ChangeOptions(updates=500, samples=10)), [500.0, None])
    table = Table.of(EXAMPLE, out)
    assert table.lines()[2][2] == "500.0*"
    assert any(note.startswith("1 of 2 seeds of sac_synther in walker2d-synther") for note in table.notes())
    departed = "steps 500 instead of 1,000, synthetic.samples 10 instead of 1,000,000. Runs: walker2d-synther."
    assert any(departed in note for note in table.notes())
    assert table.comparisons == ()  # the seed that is left decides nothing


def test_all_methods_of_a_task_are_one_picture(out, monkeypatch):
    drawn = {}
    whole = curves.plot

    def plot(found, path, **named):
        drawn[path.name] = {name: np.asarray(curve.mean).tolist() for name, curve in found.items()}, named
        whole(found, path, **named)

    monkeypatch.setattr(curves, "plot", plot)
    finish(out, MADE["walker2d"], [500.0, 700.0])
    files = Table.of(EXAMPLE, out).write(out, {})
    pictures = ["example-improvement.png", "example-summary.png", "example-hopper.png", "example-walker2d.png"]
    assert [file.name for file in files] == ["example.md", "example.json", *pictures]
    assert all(file.stat().st_size > 100 for file in files)
    assert drawn["example-hopper.png"] == (
        {"SAC": [750.0, 1_500.0], "SynthER": [1_550.0, 3_100.0]},
        {"title": "hopper", "note": "", "xlabel": "steps", "ylabel": "return"},
    )
    content = json.loads((out / "example.json").read_text())
    assert content["summary"]["columns"]["SAC"]["mean"]["value"] == pytest.approx(10.0)
