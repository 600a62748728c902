"""Tables of hand-made results: their numbers, what is missing from them, and what they admit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import Transitions, preset, write
from synther.errors import FormatError, MissingExtra
from synther.experiments.results import EvalPoint, Result
from synther.experiments.spec import ChangeOptions, Place, Recipe
from synther.experiments.specs import OfflineRun
from synther.folder import write_object
from synther.paper import findings
from synther.paper.experiment import STOPPED, Average, Cell, Experiment, Figure, Lines
from synther.paper.findings import Entry, average
from synther.paper.offline import Sizes
from synther.paper.tables import RUNS, Table
from synther.plots.markdown import head
from synther.progress import Silent

from .conftest import Seeds
from .conftest import finish as finish_run

REAL, FAKE = {"real": {"real": 1.0}}, {"synthetic": {"synthetic": 1.0}}


def run(name: str) -> OfflineRun:
    return OfflineRun(name, f"data-{name}", "td3_bc", REAL | FAKE, {"synthetic": Recipe()}, seeds=2)


RUNS_OF_IT = (run("a"), run("b"), run("c"))
EXAMPLE = Experiment(
    "example",
    "tab:example",
    "three data sets",
    RUNS_OF_IT,
    {
        one.name: {"original": Cell(one.name, "real", Figure(10.0, 1.0)), "SynthER": Cell(one.name, "synthetic")}
        for one in RUNS_OF_IT
    },
    (Average("average of two", ("a", "b"), {"original": Figure(20.0, 2.0)}), Average("of all", ("a", "b", "c"), {})),
    (("SynthER", "original"),),
    "rows",
    (Lines("Shares", {"a": 0.1, "b": 0.2, "c": 0.3}, ("original", "SynthER")),),
)


def finish(out: Path, done: OfflineRun, real: Seeds, synthetic: Seeds, before: float = 0.5) -> None:
    arms = {"real": real, "synthetic": synthetic}
    finish_run(out, done, done.updates, arms, before=before, data="made up", rows=1_234)


@pytest.fixture
def finished(tmp_path) -> Path:
    finish(tmp_path, RUNS_OF_IT[0], [10.0, 20.0], [30.0, 32.0])
    finish(tmp_path, RUNS_OF_IT[1], [40.0, 40.0], [39.0, 45.0])
    return tmp_path


@pytest.fixture
def out(finished, quick_statistics) -> Path:
    return finished


def test_mean_and_std_beside_the_papers_figure(out):
    table = Table.of(EXAMPLE, out)
    assert table.lines() == [
        ["tab:example", "original", "SynthER"],
        ["a", "15.0 ± 5.0 (10.0 ± 1.0)", "31.0 ± 1.0"],
        ["b", "40.0 ± 0.0 (10.0 ± 1.0)", "42.0 ± 3.0"],
        ["c", "- (10.0 ± 1.0)", "-"],
        ["average of two", "27.5 ± 2.5 (20.0 ± 2.0)", "36.5 ± 2.0"],
    ]
    assert "Not shown, because runs are missing: of all." in table.notes()
    assert table.title() == "three data sets; 2 of 3 runs are finished"
    notes = table.notes()
    assert notes[0] == "Mean ± standard deviation of the final score over 2 seeds after 1,000,000 updates."
    assert "data-a: 1,234 rows, made up." in notes
    assert not any("not as the experiment asks" in note for note in notes)


def test_a_pool_shows_the_seeds_of_its_runs_as_one_once_all_are_finished(out):
    cells = {"original": Cell("both", "real"), "SynthER": Cell("both", "synthetic")}
    pools = {"both": ("a", "b")}
    wanted = Experiment("pooled", "", "two runs as one", RUNS_OF_IT[:2], {"data": cells}, pools=pools)
    table = Table.of(wanted, out)
    assert table.lines()[1] == ["data", "27.5 ± 13.0", "36.5 ± 5.9"]
    assert table.notes()[0].startswith("Mean ± standard deviation of the final score over 4 seeds")
    assert table.evaluations("peak")[1] == ["data", "27.5 after 1M", "36.5 after 1M"]
    assert "2 of 2 runs" in table.title()
    (out / RUNS / "b" / "training" / "result.json").unlink()
    assert Table.of(wanted, out).lines()[1] == ["data", "-", "-"]


def test_a_table_of_many_columns_is_shown_on_its_side(out):
    cells = {f"arm {number}": Cell("a", "real") for number in range(10)}
    lines = Table.of(Experiment("wide", "", "one row", RUNS_OF_IT[:1], {"data": cells}), out).lines()
    assert lines[:2] == [["wide", "data"], ["arm 0", "15.0 ± 5.0"]]


def test_averages_best_evaluations_and_heads():
    entries = {
        "a": {"x": Entry(mean=10.0, std=2.0, seeds=3, diverged=1), "y": Entry(mean=1.0, std=0.0, seeds=4)},
        "b": {"x": Entry(mean=40.0, std=5.0, seeds=4, departed=True), "y": Entry()},
        "c": {"x": Entry(mean=99.0, std=9.0, seeds=1)},
    }
    wanted = Average("mean", ("a", "b"), {})
    assert average(wanted, "x", entries) == Entry(None, 25.0, 3.5, seeds=3, diverged=1, departed=True)
    assert average(wanted, "y", entries) == Entry()
    once = Result(100, 60.0, {"real": (EvalPoint(100, (10.0,), (1.0,)),), "synthetic": ()})
    found = findings.Finding({"real": (1.0,)}, result=once)
    assert found.peak("real") is found.peak("synthetic") is None  # evaluated at the end alone
    assert head({"command": "table", "trained by": "one\nother", "python": "3"}) == [
        "    command:    table", "    trained by: one", "                other", "    python:     3"
    ]  # fmt: skip


def test_one_column_over_the_other_as_counted_by_hand(finished):
    (found,) = Table.of(EXAMPLE, finished).comparisons
    assert (found.tasks, found.seeds) == (2, 2)
    pairs = [[30 > 10, 30 > 20, 32 > 10, 32 > 20], [39 > 40, 39 > 40, 45 > 40, 45 > 40]]
    assert found.improvement.value == pytest.approx(np.mean(pairs))
    assert found.improvement.low <= found.improvement.value <= found.improvement.high
    assert found.iqm_of_one.value == pytest.approx((32 + 39) / 2)  # the middle half of 30, 32, 39, 45
    assert found.iqm_of_other.value == pytest.approx((20 + 40) / 2)
    assert str(found).startswith("SynthER over original, 2 tasks, 2 seeds: probability of improvement 0.75 [")


def test_a_shorter_run_is_never_shown_as_the_whole_one(out):
    short = RUNS_OF_IT[2].changed(ChangeOptions(updates=100, samples=1_000, preset="fast"))
    finish(out, short, [1.0, 3.0], [2.0, 2.0])
    table = Table.of(EXAMPLE, out)
    assert table.lines()[3] == ["c", "2.0 ± 1.0* (10.0 ± 1.0)", "2.0 ± 0.0*"]
    assert table.lines()[5][1] == f"{(15 + 40 + 2) / 3:.1f} ± 2.0*"
    (note,) = (note for note in table.notes() if note.startswith("*"))
    assert "updates 100 instead of 1,000,000, sources.synthetic.preset fast instead of paper, sources." in note
    assert note.endswith("synthetic.samples 1,000 instead of 5,000,000. Runs: c.")
    assert table.notes()[0].endswith("over 2 seeds after 100 or 1,000,000 updates.")
    assert table.to_json({})["rows"]["c"]["original"]["departed"]
    assert str(table.comparisons[0]).startswith("SynthER over original, 3 tasks, 2 seeds*: ")


@pytest.mark.parametrize("known", [True, False], ids=["said so", "did not know it"])
def test_a_preset_that_was_another_then_is_told(out, known):
    """Whatever the name of the preset in run.json."""
    settings = RUNS_OF_IT[0].sources["synthetic"].settings().to_json()
    for one, overfit in zip(RUNS_OF_IT[:2], (0.3, None), strict=True):
        fit = {**settings["fit"], "overfit": overfit}
        if not known and overfit is None:
            del fit["overfit"]
        described = {"synthetic": {"synthetic": {"settings": {**settings, "fit": fit}}}}
        write_object(out / RUNS / one.name / "training" / "run.json", described)
    table = Table.of(EXAMPLE, out)
    assert table.lines()[1] == ["a", "15.0 ± 5.0 (10.0 ± 1.0)", "31.0 ± 1.0*"]  # of which one learned from real rows
    assert table.lines()[2][2] == "42.0 ± 3.0"
    (note,) = (note for note in table.notes() if note.startswith("*"))
    assert note.endswith("sources.synthetic created with an older version of preset paper. Runs: a.")


def test_one_seed_is_told_as_one_and_decides_nothing(tmp_path):
    for run in RUNS_OF_IT[:2]:
        finish(tmp_path, run.changed(ChangeOptions(seeds=1)), [10.0], [30.0])
    table = Table.of(EXAMPLE, tmp_path)
    assert table.comparisons == ()
    assert table.lines()[1][2] == "30.0*"
    assert table.lines()[4] == ["average of two", "10.0* (20.0 ± 2.0)", "30.0*"]
    assert table.notes()[0] == "Mean ± standard deviation of the final score over 1 seed after 1,000,000 updates."


def test_seeds_that_diverged_are_left_out_and_told(out):
    finish(out, RUNS_OF_IT[1], [40.0, None, 40.0], [39.0, 45.0, 50.0])
    assert Table.of(EXAMPLE, out).comparisons[0].seeds == 2  # as many as each of its tasks has
    finish(out, RUNS_OF_IT[1], [40.0, 40.0], [39.0, 45.0])
    finish(out, RUNS_OF_IT[2], [5.0, None], [None, None])
    table = Table.of(EXAMPLE, out)
    assert table.lines()[3] == ["c", "5.0 (10.0 ± 1.0)", "diverged"]
    lost = [note.partition(" diverged")[0] for note in table.notes() if "diverged and" in note]
    assert lost == ["1 of 2 seeds of real in c", "2 of 2 seeds of synthetic in c"]
    assert table.rows["c"]["original"].seeds == 1
    assert table.comparisons[0].tasks == 2
    assert str(table.comparisons[0]).endswith("Excludes c, where all seeds of one column diverged.")
    RUNS_OF_IT[0].result(out / RUNS / RUNS_OF_IT[0].name).write_text("{}")
    with pytest.raises(FormatError, match=r"result\.json"):
        Table.of(EXAMPLE, out)


def test_files_and_pictures(out):
    finish(out, RUNS_OF_IT[2], [1.0, 3.0], [2.0, 2.0])
    table = Table.of(EXAMPLE, out)
    files = table.write(out, {"command": "synther paper table example"})
    names = ["example.md", "example.json", "example.png", "example.png", "example-improvement.png"]
    assert [file.name for file in files] == [*names, "a.png", "b.png", "c.png"]
    assert all(file.stat().st_size > 100 for file in files)
    text = (out / "example.md").read_text()
    assert text.startswith("# tab:example: three data sets\n\n    command:      synther paper table example\n")
    assert "trained by:   synther paper run example\n    trained with: 0.1.0 abc\n    trained on:   a machine\n" in text
    assert "| a              | 15.0 ± 5.0 (10.0 ± 1.0) | 31.0 ± 1.0 |\n" in text
    content = json.loads((out / "example.json").read_text())
    assert content["origin"]["trained on"] == "a machine"
    assert content["rows"]["a"]["original"] == {
        "paper": {"mean": 10.0, "std": 1.0}, "mean": 15.0, "std": 5.0, "seeds": 2, "diverged": 0, "departed": False,
        "peak": {"mean": 15.0, "updates": 1_000_000}, "late": None,
    }  # fmt: skip
    assert content["unfinished"] == []
    assert content["runs"]["a"]["seconds"] == 60.0


def test_where_each_stood_highest_on_its_way(out):
    finish(out, RUNS_OF_IT[1], [40.0, None], [39.0, 45.0], before=2.5)
    table = Table.of(EXAMPLE, out)
    assert table.evaluations("peak") == [
        ["best evaluation", "original", "SynthER"],
        ["a", "15.0 after 1M", "31.0 after 1M"],
        ["b", "100.0 after 500K", "105.0 after 500K"],
    ]
    table.write(out, {})
    written = (out / "example.md").read_text()
    assert "| b               | 100.0 after 500K | 105.0 after 500K |\n\nThe best evaluation" in written


def test_the_second_half_of_the_evaluations_says_how_steady_agents_are(out):
    swings = [(0.0, 0.0), (0.0, 0.0), (90.0, 50.0), (10.0, 70.0)]
    curve = tuple(EvalPoint(250_000 * (at + 1), scores, scores) for at, scores in enumerate(swings))
    lost = (*curve[:3], EvalPoint(1_000_000, (None, 70.0), (None, 70.0)))
    result = Result(1_000_000, 1.0, {"real": curve, "synthetic": lost})
    write_object(RUNS_OF_IT[0].result(out / RUNS / "a"), result.to_json())
    table = Table.of(EXAMPLE, out)
    assert table.evaluations("late") == [["second half", "original", "SynthER"], ["a", "55.0 ± 5.0", "60.0"]]
    table.write(out, {})
    assert "| a           | 55.0 ± 5.0 | 60.0    |\n\nMean of the second half" in (out / "example.md").read_text()


def test_a_preset_with_a_student_is_no_older_version(out):
    run = replace(RUNS_OF_IT[0], sources={"synthetic": Recipe(preset="instant")})
    wanted = Experiment("one", "", "one run", (run,), {"data": {"SynthER": Cell("a", "synthetic")}})
    finish(out, run, [1.0, 3.0], [2.0, 2.0])
    for name, starred in (("instant", False), ("best", True)):
        described = {"synthetic": {"synthetic": {"settings": preset(name).to_json()}}}
        write_object(out / RUNS / "a" / "training" / "run.json", described)
        assert Table.of(wanted, out).rows["data"]["SynthER"].departed == starred


def test_a_cell_of_agents_that_are_stopped_early(out):
    curve = tuple(EvalPoint(at, (score,) * 2, (score,) * 2, (at / 1e6,) * 2) for at, score in ((1, 7.0), (2, 5.0)))
    write_object(RUNS_OF_IT[0].result(out / RUNS / "a"), Result(2, 1.0, {"real": curve, "synthetic": curve}).to_json())
    cells = {"last": Cell("a", "real"), "stopped": Cell("a", f"real{STOPPED}")}
    table = Table.of(Experiment("one", "", "one run", RUNS_OF_IT[:1], {"data": cells}), out)
    assert table.lines()[1] == ["data", "5.0 ± 0.0", "7.0 ± 0.0"]


def test_nothing_is_finished_yet(tmp_path):
    table = Table.of(EXAMPLE, tmp_path)
    assert table.evaluations("peak") == []
    assert table.comparisons == ()
    assert [file.name for file in table.write(tmp_path, {})] == ["example.md", "example.json"]
    assert table.to_json({})["unfinished"] == ["a", "b", "c"]


def test_without_rliable_the_table_goes_without_comparisons(out, monkeypatch, caplog):
    def missing(*given):
        raise MissingExtra("rliable", "stats", "comparing")

    monkeypatch.setattr(findings, "aggregate", missing)
    assert Table.of(EXAMPLE, out).comparisons == ()
    assert "comparing needs rliable" in caplog.text


def test_numbers_in_data_and_in_the_network(tmp_path):
    seen = np.zeros((100, 17), np.float32)
    rows = Transitions(seen, seen[:, :6], np.arange(100, dtype=np.float32), seen, np.zeros(100, bool))
    write(rows, tmp_path / "data" / "walker.npz")
    job = Sizes("walker-sizes", "walker", Recipe())
    job.execute(tmp_path / RUNS / job.name, Place(tmp_path, tmp_path / "data"), Silent())
    cells = {name: Cell(job.name, name, Figure(6.5)) for name in ("numbers", "parameters", "ratio")}
    table = Table.of(Experiment("sizes", "", "x", (job,), {"walker": cells}), tmp_path)
    embedding = 17 * 128 + 128 + 128 * 128 + 128 + 42 * 128 + 128 + 128 * 1024 + 1024
    blocks = 6 * (1024 * 1024 + 1024)
    parameters = (embedding + blocks + 1024 * 42 + 42) / 1e6
    row = table.rows["walker"]
    assert [row[name].mean for name in cells] == pytest.approx([0.0042, parameters, 0.0042 / parameters])
    assert str(row["parameters"]) == f"{parameters:.1f} (6.5)"
