"""`synther doctor` and `synther completion`."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from synther import doctor
from synther.cli import VERBS
from synther.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_renderer(monkeypatch):
    def fail() -> str:
        raise ConfigError("nothing renders: install something")

    monkeypatch.setattr(doctor, "graphics", fail)


def test_doctor_says_what_is_missing_and_succeeds(synther, no_renderer, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "ray" else object())
    code, out, _ = synther("doctor")
    assert code == 0
    assert "pip install 'synther[ray]'" in out
    assert "install something" in out
    found = synther("doctor", "--json").json
    assert {name for name, one in found.items() if one["state"] == "missing"} - {"gpu"} == {"renderer", "ray"}
    assert found["python"]["state"] == "ok"
    assert "torch" in found["libraries"]["found"]


def test_low_memory_and_disk_are_reported(monkeypatch, no_renderer, tmp_path):
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1e30)
    monkeypatch.setattr(doctor, "LEAST_DISK", 1e30)
    low = {one.name: one.advice for one in doctor.examine(tmp_path) if one.state == "low"}
    assert set(low) == {"memory", "disk"}
    assert all(low.values())


def test_doctor_knows_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - {"all", "dev", "docs"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_every_command_and_option(synther, shell):
    code, out, err = synther("completion", shell)
    assert (code, err) == (0, "")
    assert [verb for verb in VERBS if verb not in out] == []
    assert "write-config" in out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True)
    if shell == "bash" and shutil.which("bash"):
        out += "\nCOMP_WORDS=(synther upsample --sam); COMP_CWORD=2; _tyro_synther; echo ${COMPREPLY[@]}\n"
        done = subprocess.run(["bash"], input=out, capture_output=True, text=True, check=True)
        assert "--samples" in done.stdout.split()
