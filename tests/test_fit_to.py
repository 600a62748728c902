"""A fit into a file: done once, and never on top of another model."""

from __future__ import annotations

from pathlib import Path

import pytest

from synther import Synthesizer
from synther.errors import ConfigError
from synther.upsample import fit_to

from .small_job import made, model


def test_the_model_is_saved_and_the_checkpoint_gone(tmp_path):
    path = tmp_path / "deep" / "m.safetensors"
    fitted = fit_to(path, made(), model(), False)
    assert [file.name for file in path.parent.iterdir()] == ["m.safetensors"]
    assert Synthesizer.load(path).record == fitted.record


def test_a_model_that_is_there_is_not_fitted_again(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    fitted = fit_to(path, made(), model(), False)
    monkeypatch.setattr(Synthesizer, "fit", None)
    assert fit_to(path, made(), model(), False).record == fitted.record


def test_another_process_may_have_cleared_the_checkpoint_away(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    save = Synthesizer.save

    def meanwhile(self: Synthesizer, path: Path) -> None:
        save(self, path)
        path.with_name("m.safetensors.checkpoint").unlink()

    monkeypatch.setattr(Synthesizer, "save", meanwhile)
    assert fit_to(path, made(), model(), False).record == Synthesizer.load(path).record


@pytest.mark.parametrize("other", ["data", "settings", "seed"])
def test_a_model_of_something_else_is_refused(other, tmp_path):
    path = tmp_path / "m.safetensors"
    fit_to(path, made(), model(), False)
    before = path.read_bytes()
    rows = made(shift=1.0) if other == "data" else made()
    wanted = {"data": model(), "settings": model(sampler={"steps": 4}), "seed": model(seed=1)}[other]
    with pytest.raises(ConfigError, match=r"m\.safetensors is a model of other data or options"):
        fit_to(path, rows, wanted, False)
    assert path.read_bytes() == before
