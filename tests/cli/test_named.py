"""Data sets by their names, in every verb that takes data."""

from __future__ import annotations

import json

import pytest

from synther import write


@pytest.fixture
def folder(rows, tmp_path):
    """Where `my-replay` lies, in D4RL's spelling of file names."""
    path = tmp_path / "sets"
    path.mkdir()
    write(rows, path / "my_replay-v2.npz")
    return path


def test_each_verb_finds_it(synther, folder, tiny, tmp_path, rows):
    named = ("my-replay", "--data", folder)
    assert json.loads(synther("inspect", *named, "--json").out)["rows"] == len(rows)
    assert synther("fit", *named, "--out", tmp_path / "model.safetensors", *tiny).code == 0
    made = synther("upsample", *named, "--out", tmp_path / "made", "--samples", 50, "--json", *tiny)
    assert json.loads(made.out)["real_rows"] == len(rows)
    noise = ("--generators", "additive", "--samples", "50", "--json")
    assert synther("compare", *named, *noise, "--out", tmp_path / "compared").code == 0
    judged = ("assess", "my-replay", tmp_path / "made" / "synthetic.hdf5", "--data", folder)
    assert synther(*judged, "--out", tmp_path / "report").code == 0


@pytest.mark.parametrize("verb", ["fit", "upsample", "compare", "inspect"])
def test_one_that_is_not_there_is_named(synther, verb, tmp_path):
    out = () if verb == "inspect" else ("--out", tmp_path / "out.safetensors")
    code, _, err = synther(verb, "walker2d-medium", "--data", tmp_path, *out)
    assert (code, err.count("\n")) == (2, 1)
    assert "'walker2d-medium'" in err


def test_a_file_is_read_whatever_its_name_means(synther, rows, tmp_path):
    """Its rows are of another environment than the data set of that name."""
    write(rows, tmp_path / "hopper-medium.npz")
    assert synther("inspect", tmp_path / "hopper-medium.npz").code == 0
