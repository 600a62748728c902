"""`synther compare`: what it prints, what it refuses."""

from __future__ import annotations

import json
import sys

QUICK = (
    *("--samples", "120", "--trials", "1", "--epochs", "1", "--trial-epochs", "1", "--trial-rows", "60"),
    *("--jobs", "1"),
)


def test_a_table_for_a_person_and_one_for_a_machine(synther, data, tmp_path, tiny, monkeypatch, caplog):
    out = tmp_path / "run"
    monkeypatch.setenv("COLUMNS", "80")
    command = ("compare", data, "--generators", "diffusion,noise", "--out", out, "--device", "cpu", *QUICK, *tiny)
    code, text, _ = synther(*command)
    assert code == 0
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = next(number for number, words in enumerate(lines) if words[0] == "generator")
    assert lines[header] == ["generator", "marginal", "worst", "corr.", "dynamics", "novelty", "ends"]
    names = ["real", "diffusion", "additive", "multiplicative", "dynamics"]
    assert [words[0] for words in lines[header + 2 :]] == names
    assert all(len(words) == 7 for words in lines[header + 2 :])
    code, text, _ = synther(*command, "--json")
    assert code == 0
    found = json.loads(text)
    assert [row["name"] for row in found["generators"]] == names
    assert found["real_rows"] == 300
    assert f"{found['generators'][2]['marginal']:.4f}" == lines[header + 4][1]
    assert "diffusion is measured already" in caplog.text
    recorded = (out / "comparison.md").read_text()
    assert f"synther compare {data} --generators diffusion,noise" in recorded


def test_other_refusals(synther, refused, data, tmp_path, monkeypatch):
    command = ("compare", data, "--generators", "additive", "--samples", "120")
    assert synther(*command, "--out", tmp_path / "run").code == 0
    assert "other options: data" in refused(*command, "--out", tmp_path / "run", "--fraction", "0.5")
    monkeypatch.setitem(sys.modules, "ctgan", None)
    assert "synther[tabular]" in refused("compare", data, "--out", tmp_path / "new", *QUICK)
