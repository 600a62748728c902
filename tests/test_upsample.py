"""The main job in a folder: done once, taken up after any interruption, and never on top of something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from synther import Synthesizer, Transitions, read
from synther.assess.fidelity import Comparison
from synther.errors import ConfigError, DataError, FormatError, Unwritable
from synther.upsample import fit_to, upsample

from .support.small_job import made, model

SAMPLES = 3000
FILES = ["comparison.json", "comparison.png", "model.safetensors", "run.json", "synthetic.npz"]


def run(folder: Path, rows: Transitions | None = None, synthesizer: Synthesizer | None = None, samples: int = SAMPLES,
        suffix: str = ".npz", progress=False):  # fmt: skip
    return upsample(rows or made(), folder, synthesizer or model(), samples, suffix=suffix, progress=progress)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What is in a folder, and when it was written."""
    return {
        str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(tmp_path_factory.mktemp("done") / "new" / "run")


@pytest.fixture(autouse=True)
def no_picture(done, monkeypatch) -> None:
    """A picture takes a second, and one is enough."""
    monkeypatch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))


def test_the_files_hold_the_rows_of_the_model_and_their_figures(done):
    assert sorted(file.name for file in done.model.parent.iterdir()) == FILES
    assert done.picture.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(done.figures.read_text(), parse_constant=pytest.fail)
    assert Comparison.from_json(figures) == done.comparison
    assert (figures["rows_real"], figures["rows_synthetic"], figures["terminal_rate_real"]) == (300, SAMPLES, 0.1)
    assert len(figures["columns"]) == 7
    rows = read(done.data)
    assert rows.equals(Synthesizer.load(done.model).sample(SAMPLES, seed=0, progress=False))
    assert rows.equals(model().fit(made(), progress=False).sample(SAMPLES, seed=0, progress=False))
    assert rows.env_id == "Made-v0"


def test_a_student_that_draws_the_rows_is_announced(tmp_path, caplog):
    caplog.set_level("INFO")
    run(tmp_path / "run", synthesizer=model(distill={"calls": 2, "steps": 2, "rows": 512}), samples=10)
    (told,) = [message for message in caplog.messages if message.startswith("sampling")]
    assert "2 network calls per row" in told


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": made(shift=1.0)}, "data"),
        ({"synthesizer": model(data={"threshold": "half"})}, "settings"),
        ({"suffix": ".hdf5"}, "suffix"),
        ({"samples": 1, "synthesizer": model(seed=1)}, "seed .*, samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_options_are_refused(done, change, named):
    before = content(done.model.parent)
    with pytest.raises(ConfigError, match=f"other options: {named}.*--out"):
        run(done.model.parent, **change)
    assert content(done.model.parent) == before


FOREIGN = [(name, "mine") for name in ("thesis.tex", "model.safetensors", ".hidden")]


@pytest.mark.parametrize(("name", "text"), [*FOREIGN, *(("run.json", text) for text in ("{", "[1]", "\x00"))])
def test_a_folder_of_something_else_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, FormatError), match=tmp_path.name):
        run(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, text)]


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_comparison_is_named(done, text, tmp_path):
    shutil.copytree(done.model.parent, tmp_path / "run")
    (tmp_path / "run" / "comparison.json").write_text(text)
    with pytest.raises(FormatError, match=r"comparison\.json"):
        run(tmp_path / "run")


def test_a_model_that_cannot_be_written_is_not_fitted(tmp_path, monkeypatch):
    monkeypatch.setattr(Synthesizer, "fit", pytest.fail)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        fit_to(tmp_path / "file" / "m.safetensors", made(), model(), False)
    monkeypatch.setattr("os.access", lambda place, how: False)
    with pytest.raises(Unwritable, match=tmp_path.name):
        fit_to(tmp_path / "m.safetensors", made(), model(), False)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"samples": 0}, ConfigError), ({"suffix": ".pkl"}, FormatError), ({"rows": made(1)}, DataError)],
)
def test_what_cannot_succeed_does_not_begin(change, error, tmp_path):
    with pytest.raises(error):
        run(tmp_path / "run", **change)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        run(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("lost", ["comparison.json", "comparison.png"])
def test_stopped_while_comparing_the_rows_are_not_written_again(done, lost, tmp_path):
    run(tmp_path)
    (tmp_path / lost).unlink()
    (tmp_path / "synthetic.npz.partial").mkdir()  # killed before it could be removed
    (tmp_path / "model.safetensors.checkpoint").write_text("")
    written = (tmp_path / "synthetic.npz").stat().st_mtime_ns
    again = run(tmp_path)
    assert (tmp_path / "synthetic.npz").stat().st_mtime_ns == written
    assert again.comparison == done.comparison
    assert sorted(file.name for file in tmp_path.iterdir()) == FILES


def test_a_model_is_fitted_into_its_file_once(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "m.safetensors"
    fitted = fit_to(path, made(), model(), False)
    assert [file.name for file in path.parent.iterdir()] == ["m.safetensors"]
    assert Synthesizer.load(path).record == fitted.record
    monkeypatch.setattr(Synthesizer, "fit", None)
    assert fit_to(path, made(), model(), False).record == fitted.record


def test_a_model_of_something_else_is_refused(done):
    before = content(done.model.parent)
    for rows, wanted in ((made(shift=1.0), model()), (made(), model(sampler={"steps": 4})), (made(), model(seed=1))):
        with pytest.raises(ConfigError, match=r"model\.safetensors"):
            fit_to(done.model, rows, wanted, False)
    assert content(done.model.parent) == before
