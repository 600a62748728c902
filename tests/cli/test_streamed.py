"""Commands on Parquet folders of more rows than are to be in memory."""

from __future__ import annotations

import pytest

from synther import Synthesizer, read
from synther.formats import stream

from ..support.files import write_folder

pytestmark = pytest.mark.usefixtures("quick_report", "no_processes")

WINDOW = ("--fit.window-rows", 100)


@pytest.fixture
def folder(rows, tmp_path):
    return write_folder(tmp_path / "rows", rows, 100, 20)


def test_a_fit_says_that_it_streams_and_once_done_only_reports(synther, folder, tiny, tmp_path, caplog):
    command = ("fit", folder, "--out", tmp_path / "m.safetensors", *WINDOW, *tiny)
    assert synther(*command).code == 0
    assert "streaming 300 rows of 3 files: 100 in memory" in caplog.text
    again = synther(*command, "--json")
    assert (again.code, again.json["rows"]) == (0, 300)
    assert Synthesizer.load(tmp_path / "m.safetensors").settings.fit.window_rows == 100


def test_a_fraction_that_fits_into_memory_is_a_sample(synther, folder, tiny, tmp_path, caplog):
    command = ("fit", folder, "--out", tmp_path / "m.safetensors", *WINDOW, *tiny)
    answer = synther(*command, "--fraction", 0.2, "--json")
    assert (answer.code, answer.json["rows"]) == (0, 60)
    assert "streaming" not in caplog.text


@pytest.mark.parametrize("options", [("--n-step", 3), ("--next-actions",), ("--fraction", 0.9)])
def test_what_needs_all_rows_is_refused(refused, folder, tiny, tmp_path, options):
    command = ("fit", folder, "--out", tmp_path / "m.safetensors", *WINDOW, *tiny)
    assert "--fit.window-rows" in refused(*command, *options)


def test_upsample(synther, folder, tiny, tmp_path):
    command = ("upsample", folder, "--out", tmp_path / "run", "--samples", 50, *WINDOW, *tiny, "--json")
    first = synther(*command)
    assert (first.code, first.json["real_rows"]) == (0, 300)
    assert len(read(tmp_path / "run" / "synthetic.hdf5")) == 50


def test_others_look_at_some_rows_and_say_so(synther, folder, data, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stream, "SAMPLE_ROWS", 200)
    answer = synther("assess", folder, data, "--out", tmp_path / "report", "--json")
    assert answer.code == 0
    read = answer.json["rows_real"]
    assert 190 < read <= 200
    assert f"300 rows; using {read} of them, from random places" in caplog.text
    assert answer.json["rows_synthetic"] == 300
    found = synther("inspect", folder, "--json").json
    assert (found["rows"], found["rows_read"]) == (300, read)
