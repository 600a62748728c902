"""The benchmark that sets verdicts against the scores of agents, as small as it can be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import verdict_agents
import verdict_tables

from synther import read

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

SETS = ("best-width-64", "shuffled", "outcomes-narrow")


def test_from_data_to_table(tmp_path: Path) -> None:
    data, folder, out = tmp_path / "hopper.npz", tmp_path / "results", tmp_path / "table.md"
    about = [str(data), "--folder", str(folder), "--only"]
    verdict_agents.main(["thin", "hopper-sac", str(data), "--every", "30"])
    # Fewer rows than an assessment fits networks on: that would take most of the time.
    made = ["--rows", "90", "--preset", "laptop", "--most-steps", "20", "--mean-steps", "20", "--device", "cpu"]
    verdict_agents.main(["generate", *about, *SETS, *made])
    small = ["--seeds", "2", "--updates", "20", "--episodes", "1", "--width", "8", "--device", "cpu", "--workers", "1"]
    verdict_agents.main(["train", *about, "real", *SETS, *small])
    verdict_agents.main(["assess", *about, *SETS])
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.json")}
    verdict_agents.main(["train", *about, "real", *SETS, *small])
    verdict_agents.main(["assess", *about, *SETS])
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.json")} == before
    verdict_agents.main(["table", "--folder", str(folder), "--out", str(out), "--draws", "20", "--decide"])
    text, found = out.read_text(), json.loads(out.with_suffix(".json").read_text())
    assert all(name in text for name in ("Verdict against outcome", "Rank correlation", *SETS))
    assert {entry["name"] for entry in found["sets"]} == set(SETS)
    assert all(len(entry["values"]) == 2 for entry in found["sets"])


def test_thinned_episodes_are_whole(tmp_path: Path) -> None:
    verdict_agents.main(["thin", "hopper-sac", str(tmp_path / "few.npz"), "--every", "7"])
    every, few = read("hopper-sac"), read(tmp_path / "few.npz")
    number = verdict_agents._episodes(every)
    assert few.equals(every[number % 7 == 0])
    assert few.env_id == every.env_id


def test_rank_correlation() -> None:
    values = np.array([1.0, 2.0, 3.0, 10.0])
    assert verdict_tables.spearman(values, values**3) == pytest.approx(1)
    assert verdict_tables.spearman(values, -values) == pytest.approx(-1)
    assert verdict_tables.spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(np.sqrt(0.75))
    assert verdict_tables.spearman(values, np.ones(4)) is None


def test_the_best_limit_parts_what_can_be_parted() -> None:
    gaps, above = np.array([0.0, 1.0, 3.0, 4.0]), np.array([False, False, True, True])
    assert verdict_tables.best_limit(gaps, above) == (2.0, 1.0)
    assert verdict_tables.balanced_accuracy(gaps, above, 3.5) == 0.75
    assert verdict_tables.best_limit(gaps, np.ones(4, bool)) == (None, None)
