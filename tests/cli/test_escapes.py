"""Names out of files cannot move the cursor of a terminal, nor fake a line of output."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synther import write

from ..support.small_job import made

NAME = "Env\x1b[2J\nsynther: done\u202e-v0"


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
def test_inspect(synther, tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    write(replace(made(), env_id=NAME), path)
    answer = synther("inspect", path)
    assert answer.code == 0
    assert r"Env\x1b[2J\nsynther: done\u202e-v0" in answer.out


def test_errors(synther, tmp_path):
    path = tmp_path / "rows.npz"
    write(replace(made(), env_id=NAME), path)
    asked = ("--updates", "5", "--episodes", "1", "--device", "cpu", "--env-options", "{}")
    answers = [
        synther("train", "bc", path, "--out", tmp_path / "run", *asked),
        synther("inspect", tmp_path / "a\x1b.npz"),
    ]
    for answer in answers:
        assert answer.code == 2
        assert r"\x1b" in answer.err
        assert "\x1b" not in answer.err
        assert "\u202e" not in answer.err
