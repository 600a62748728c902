"""A table of hand-made pixel results: scores of stage one and of heads, beside the paper's figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synther.experiments.spec import ChangeOptions
from synther.experiments.specs import STAGE_ONE, OnlinePixelRun, PixelRun
from synther.folder import read_object, write_object
from synther.paper import find, findings
from synther.paper.tables import RUNS, Table

from .conftest import finish as finish_run


def finish(out: Path, run: PixelRun, scores: dict[str, float]) -> None:
    """Two seeds that are one apart."""
    seeds = {arm: (score, score + 1) for arm, score in scores.items()}
    finish_run(out, run, run.updates, seeds, before=None, data="frames read from x", rows=100)


@pytest.fixture
def out(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(findings, "comparison", lambda *given: None)
    return tmp_path


def test_the_ablation_of_features(out):
    wanted = find("representation")
    (run,) = wanted.jobs
    assert isinstance(run, PixelRun)
    finish(out, run, {STAGE_ONE: 30.0, "synthetic": 50.0, "actor": 40.0, "critic": 10.0})
    table = Table.of(wanted, out)
    assert table.lines() == [
        ["tab:representation_ablation", "DrQ+BC"],
        ["actor's and critic's", "50.5 ± 0.5 (52.3 ± 7.0)"],
        ["actor's alone", "40.5 ± 0.5 (43.5 ± 7.3)"],
        ["critic's alone", "10.5 ± 0.5 (16.0 ± 2.8)"],
    ]
    assert table.notes()[0] == "Mean ± standard deviation of the final score over 2 seeds after 550,000 updates."


def test_original_against_synther(out):
    wanted = find("vd4rl")
    run = next(job for job in wanted.jobs if job.name == "cheetah-run-expert-bc")
    assert isinstance(run, PixelRun)
    finish(out, run.changed(ChangeOptions(updates=7, samples=9)), {STAGE_ONE: 60.0, "synthetic": 80.0})
    table = Table.of(wanted, out)
    (row,) = [line for line in table.lines() if line[0] == "cheetah-run-expert"]
    assert row[1:3] == ["- (34.5 ± 8.3)", "- (52.3 ± 7.0)"]
    assert row[3:] == ["60.5 ± 0.5* (67.4 ± 6.8)", "80.5 ± 0.5* (85.4 ± 3.1)"]
    departures = "updates 7 instead of 550,000, arms.synthetic.recipe.samples 9 instead of 5,000,000"
    assert any(departures in note for note in table.notes())
    assert table.lines()[-1][1:] == ["- (51.7 ± 5.7)", "- (56.5 ± 5.4)", "- (49.8 ± 4.2)", "- (53.2 ± 4.1)"]


def test_a_preset_that_was_another_then_is_told(out):

    wanted = find("representation")
    (run,) = wanted.jobs
    assert isinstance(run, PixelRun)
    finish(out, run, {STAGE_ONE: 30.0, "synthetic": 50.0, "actor": 40.0, "critic": 10.0})
    recipe = run.arms["actor"].recipe
    assert recipe is not None
    facts = out / RUNS / run.name / "provenance.json"
    then = {"actor": recipe.settings().changed(fit={"steps": 7}).to_json(), "critic": recipe.settings().to_json()}
    write_object(facts, {**read_object(facts), "generators": then})
    table = Table.of(wanted, out)
    assert [row[1].partition(" (")[0] for row in table.lines()[1:]] == ["50.5 ± 0.5", "40.5 ± 0.5*", "10.5 ± 0.5"]
    assert any("arms.actor created with an older version of preset paper" in note for note in table.notes())


def test_our_own_states_paired_differences(out):
    """Seed by seed, synthetic heads are 2 and 4 above real ones: 3 ± 12.7 with one degree of freedom."""
    wanted = find("pixels")
    bc, drq_bc = wanted.jobs[:2]
    assert isinstance(bc, PixelRun)
    assert isinstance(drq_bc, PixelRun)
    seeds = {STAGE_ONE: (0.0, 10.0), "latents": (1.0, 11.0), "synthetic": (3.0, 15.0), "half": (2.0, None)}
    finish_run(out, bc, bc.updates, seeds, before=None, data="frames read from x", rows=100)
    seeds = {arm: (10.0, 12.0) for arm in (STAGE_ONE, *drq_bc.arms)}
    finish_run(out, drq_bc, 7, seeds, before=None, data="frames read from x", rows=100)
    table = Table.of(wanted, out)
    found = {(one.comparison, one.primary): str(one) for one in table.paired}
    assert found == {
        ("DrQ+BC SynthER - DrQ+BC real latents", True): "+0.0 [+0.0, +0.0]",
        ("BC SynthER - BC real latents", True): "+3.0 [-9.7, +15.7]",
        ("DrQ+BC SynthER - DrQ+BC original", False): "+0.0 [+0.0, +0.0]",
        ("BC SynthER - BC original", False): "+4.0 [-8.7, +16.7]",
        ("DrQ+BC 50-50 - DrQ+BC real latents", False): "+0.0 [+0.0, +0.0]",
    }
    assert all(one.row == "cheetah-run-expert" for one in table.paired)
    written = table.write(out, {})
    assert {file.name for file in written} == {"pixels.md", "pixels.json", "pixels-differences.png"}
    text = written[0].read_text()
    assert (
        "| BC SynthER - BC real latents         | cheetah-run-expert | +3.0 [-9.7, +15.7]    | 2     | primary" in text
    )
    assert "(real latents)" in text


def test_differences_over_all_data_sets(out):
    wanted = find("pixels")
    runs = [job for job in wanted.jobs if isinstance(job, PixelRun) and job.algorithm == "bc"][:2]
    for run, gain in zip(runs, (2.0, 6.0), strict=True):
        scores = {"latents": (5.0, 9.0, 7.0), "synthetic": (5.0 + gain, 9.0 + gain, 10.0 + gain)}
        finish_run(out, run, run.updates, scores, before=None, data="frames read from x", rows=100)
    (found,) = [one for one in Table.of(wanted, out).paired if one.row == "all data sets"]
    assert (found.comparison, found.primary, found.seeds) == ("BC SynthER - BC real latents", True, 6)
    assert found.difference.value == pytest.approx(5.0)
    # Each mean has a standard error of 1, their mean one of 1 / sqrt(2); Welch's degrees of freedom are 4.
    assert found.difference.high - found.difference.value == pytest.approx(2.776 / 2**0.5)


def test_online_the_control_has_the_same_updates_of_heads(out):
    wanted = find("pixels-online")
    plain, made, control = wanted.jobs
    for run, scores in zip((plain, made, control), ((1.0, 2.0), (5.0, 8.0), (3.0, 4.0)), strict=True):
        assert isinstance(run, OnlinePixelRun)
        finish_run(out, run, run.steps, {run.arm: scores})
    assert isinstance(made, OnlinePixelRun)
    assert isinstance(control, OnlinePixelRun)
    assert made.synthetic is not None
    assert replace(made, name=control.name, synthetic=replace(made.synthetic, copies=True)) == control
    table = Table.of(wanted, out)
    (primary,) = [one for one in table.paired if one.primary]
    assert (primary.comparison, primary.difference.value) == ("DrQ-v2 + SynthER - DrQ-v2 + real latents", 3.0)
    assert any("every action is taken 2 times" in note for note in table.notes())
