"""`synther assess`: what it writes and prints, which model it finds, what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from synther import Synthesizer, read, write
from synther.formats import shipped

pytestmark = pytest.mark.usefixtures("quick_report")


@pytest.fixture(scope="module")
def fake(model, tmp_path_factory) -> Path:
    """Rows of the model, far from it."""
    path = tmp_path_factory.mktemp("fake") / "fake.npz"
    write(Synthesizer.load(model).sample(150, seed=0, progress=False), path)
    return path


@pytest.fixture(scope="module")
def hopper(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hopper") / "hopper.npz"
    write(read(shipped.hopper())[:90], path)
    return path


def kept(folder: Path) -> dict:
    found: dict = json.loads((folder / "assessment.json").read_text())
    return found


class TestAnswer:
    def test_a_person_reads_a_table_and_the_verdict(self, synther, data, fake, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "500")  # notes are wrapped in a narrower terminal
        code, out, err = synther("assess", data, fake, "--out", tmp_path / "r")
        found = kept(tmp_path / "r")
        assert code == 0
        assert sorted(file.name for file in (tmp_path / "r").iterdir()) == ["assessment.json", "report.html"]
        assert "300 real rows against 150 synthetic ones" in out
        lines = out.splitlines()
        for measure in found["measures"]:
            shown = [line for line in lines if line.startswith(f"  {measure['label']}  ")]
            assert len(shown) == (measure["value"] is not None), measure["label"]
        marginal = next(measure for measure in found["measures"] if measure["name"] == "marginal")
        assert f"{marginal['value']:.4f}" in next(line for line in lines if "Marginal similarity" in line)
        worst = min(found["columns"], key=lambda column: column["similarity"])
        assert f"least similar columns: {worst['name']} {worst['similarity']:.3f}, " in out
        assert f"{found['verdict']['decision'].upper()}. {found['verdict']['sentence']}" in out
        assert all(f"- {reason['says']}: {reason['text']}" in out for reason in found["verdict"]["reasons"])
        assert all(f"note: {note}" in out for note in found["notes"])
        assert lines[-2:] == [str(tmp_path / "r" / "report.html"), str(tmp_path / "r" / "assessment.json")]
        assert "assess: 100 %" in err
        assert (found["process"], found["efforts"], found["cloud"]["judge"]) == (
            None,
            [],
            "3 networks fitted on real rows",
        )
        assert (found["real_name"], found["synthetic_name"]) == ("my_replay.npz", "fake.npz")

    def test_it_fits_a_terminal(self, synther, data, fake, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        *text, _, _ = synther("assess", data, fake, "--out", tmp_path / "r", "--quiet").out.splitlines()
        assert max(map(len, text)) <= 80
        [header] = [line for line in text if "synthetic " in line and "better" in line]
        assert header.split() == ["synthetic", "real", "rows", "better"]

    def test_a_machine_reads_one_object(self, synther, data, fake, rows, model, tmp_path):
        write(rows[:40], tmp_path / "more.npz")
        options = ("--held-out", tmp_path / "more.npz", "--model", model, "--json", "--quiet")
        answer = synther("assess", data, fake, "--out", tmp_path / "r", *options)
        assert (answer.code, answer.err) == (0, "")
        assert answer == synther("assess", data, fake, "--out", tmp_path / "r", *options)
        assert len(kept(tmp_path / "r")["efforts"]) == 2
        found, whole = answer.json, kept(tmp_path / "r")
        assert found["verdict"] == whole["verdict"]
        assert found["notes"] == whole["notes"]
        assert (found["rows_real"], found["rows_synthetic"], found["rows_held_out"]) == (300, 150, 40)
        assert found["measures"] == {
            entry["name"]: {"value": entry["value"], "real": entry["real"]} for entry in whole["measures"]
        }
        assert list(found["columns"].values()) == sorted(column["similarity"] for column in whole["columns"])
        assert all(Path(found["files"][name]).is_file() for name in ("report", "figures"))


class TestModels:
    @pytest.mark.parametrize("spelling", ["m.safetensors", "~/m.safetensors"])
    def test_a_model_makes_the_rows(self, synther, data, model, spelling, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        shutil.copy(model, "m.safetensors")
        answer = synther("assess", data, spelling, "--samples", "0.12K", "--out", "r", "--json", "--quiet")
        assert (answer.code, answer.err, answer.json["rows_synthetic"]) == (0, "", 120)
        found, own = kept(tmp_path / "r"), Synthesizer.load(model).settings.sampler
        assert [effort["calls"] for effort in found["efforts"]] == sorted([4, own.network_calls])
        assert found["process"]["sigmas"][-1] == 0
        assert found["synthetic_name"] == "m.safetensors"

    def test_it_is_found_beside_the_rows_of_a_run(self, synther, data, tiny, tmp_path, monkeypatch):
        folder = tmp_path / "run"
        assert synther("upsample", data, "--samples", 150, "--out", folder, "--format", "npz", *tiny).code == 0
        monkeypatch.setenv("HOME", str(tmp_path))
        assert synther("assess", data, "~/run/synthetic.npz", "--out", tmp_path / "r", "--quiet").code == 0
        assert len(kept(tmp_path / "r")["efforts"]) == 2
        (folder / "run.json").unlink()  # some other folder, with some other model
        assert synther("assess", data, folder / "synthetic.npz", "--out", tmp_path / "r", "--quiet").code == 0
        assert kept(tmp_path / "r")["efforts"] == []

    def test_one_of_other_rows(self, synther, hopper, model, tmp_path):
        code, out, err = synther("assess", hopper, hopper, "--model", model, "--out", tmp_path, "--quiet")
        assert (code, err) == (0, "")
        assert "note: the model cannot generate such rows and is ignored: " in out
        assert kept(tmp_path)["process"] is None

    def test_one_that_cannot_make_such_rows(self, refused, hopper, model, tmp_path):
        err = refused("assess", hopper, model, "--out", tmp_path / "r", "--samples", 50, "--quiet")
        assert "observation" in err


class TestJudges:
    def judge(self, synther, real: Path, folder: Path, *options: object) -> str | None:
        code, _, err = synther("assess", real, real, "--out", folder, "--quiet", *options)
        assert (code, err) == (0, "")
        cloud = kept(folder)["cloud"]
        return None if cloud is None else cloud["judge"]

    def test_the_simulator_of_the_rows(self, synther, hopper, tmp_path):
        assert self.judge(synther, hopper, tmp_path) == "Hopper-v5 in MuJoCo"
        assert self.judge(synther, hopper, tmp_path, "--no-simulator") is None  # too few rows for networks

    def test_rows_that_do_not_name_it(self, synther, hopper, tmp_path):
        write(replace(read(hopper), env_id=None), tmp_path / "x.npz")
        assert self.judge(synther, tmp_path / "x.npz", tmp_path / "r") is None
        assert self.judge(synther, tmp_path / "x.npz", tmp_path / "r", "--env-id", "Hopper-v5") == "Hopper-v5 in MuJoCo"
