"""`synther compare`: what it prints, what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

QUICK = (
    *("--samples", "120", "--trials", "1", "--epochs", "1", "--trial-epochs", "1", "--trial-rows", "60"),
    *("--jobs", "1"),
)


def test_a_table_for_a_person_and_one_for_a_machine(synther, data, tmp_path, tiny, monkeypatch, caplog):
    out = tmp_path / "run"
    monkeypatch.setenv("COLUMNS", "80")
    command = ("compare", data, "--generators", "diffusion,ctgan,noise", "--out", out, "--device", "cpu", *QUICK, *tiny)
    code, text, _ = synther(*command)
    assert code == 0
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = next(number for number, words in enumerate(lines) if words[0] == "generator")
    assert lines[header] == ["generator", "marginal", "worst", "corr.", "dynamics", "novelty", "ends"]
    names = ["real", "diffusion", "ctgan", "additive", "multiplicative", "dynamics"]
    assert [words[0] for words in lines[header + 2 :]] == names
    assert all(len(words) == 7 for words in lines[header + 2 :])
    code, text, _ = synther(*command, "--json")
    assert code == 0
    found = json.loads(text)
    assert [row["name"] for row in found["generators"]] == names
    assert found["real_rows"] == 300
    assert f"{found['generators'][2]['marginal']:.4f}" == lines[header + 4][1]
    assert "ctgan is measured already" in caplog.text
    recorded = (out / "comparison.md").read_text()
    assert f"synther compare {data} --generators diffusion,ctgan,noise" in recorded


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--generators", "vae"), "unknown generator 'vae': expected some of diffusion, tvae, ctgan, additive, "),
        (("--generators", "diffusion,"), "unknown generator ''"),
        (("--samples", "0"), "the number of samples must be a whole number and at least 1, got 0"),
        (("--trials", "-1"), "trials must be at least 0, got -1"),
        (("--jobs", "0"), "jobs must be at least 1, got 0"),
        (("--env-id", "Nowhere-v0"), "cannot set 'Nowhere-v0' to a recorded state"),
        (("--env-id", "Hopper-v5", "--no-simulator"), "--env-id names a simulator"),
        (("--preset", "huge"), "unknown preset 'huge'"),
    ],
)
def test_bad_input(refused, data, tmp_path, options, text):
    assert text in refused("compare", data, "--out", tmp_path / "run", *options)


def test_what_must_be_installed_is_said_before_any_work(refused, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctgan", None)
    assert "synther[tabular]" in refused("compare", data, "--out", tmp_path / "run", *QUICK)


def test_other_data_is_refused(synther, refused, data, tmp_path):
    command = ("compare", data, "--generators", "additive", "--samples", "120", "--out", tmp_path / "run")
    assert synther(*command).code == 0
    assert "holds a run with another data" in refused(*command, "--fraction", "0.5")


def test_missing_arguments(synther, data):
    code, _, err = synther("compare", data)
    assert code == 2
    assert "--out" in err
