"""Fits that are watched in TensorBoard, and the layout of its page."""

from __future__ import annotations

import re
import sys

import pytest

from synther.errors import MissingExtra
from synther.progress import Silent
from synther.trackers import OF_FITS, Watched, of_runs

from . import small_job

pytest.importorskip("tensorboard")


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_a_fit_writes_every_measurement(tmp_path):
    watched = Watched(tmp_path, Silent())
    model = small_job.model(fit={"steps": 40, "evaluate_every": 10})
    rows = small_job.made()
    model.fit(rows, progress=watched)
    assert list(tmp_path.iterdir()) == [tmp_path / "tensorboard"]
    model.fit(rows, progress=watched)  # as a refresh would
    watched.close()
    found = events(tmp_path)
    losses = [(event.step, event.value) for event in found.Scalars("fit/held_out")]
    history = [(int(entry["step"]), entry["held_out"]) for entry in model.record.history]
    assert losses[len(history) :] == [(step + 40, pytest.approx(value)) for step, value in history]
    assert [step for step, _ in losses] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert "custom_scalars__config__" in found.Tags()["tensors"]


def test_nothing_is_written_before_there_is_something(tmp_path):
    watched = Watched(tmp_path / "run", Silent())
    with watched.phase("fit", 3) as phase:
        phase.advance(3)
    watched.close()
    assert not (tmp_path / "run").exists()


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match="track"):
        Watched(tmp_path)


def test_the_layout_names_what_is_written():
    def shown(layout, tag):
        charts = [chart for group in layout.values() for chart in group.values()]
        exact = {name for kind, names in charts if kind == "Margin" for name in names}
        lines = [name for kind, names in charts if kind == "Multiline" for name in names]
        return tag in exact or any(re.fullmatch(name, tag) for name in lines)

    for tag in ("fit/loss", "fit/held_out", "comparison/marginal"):
        assert shown(OF_FITS, tag)
    layout = of_runs(["real", "synthetic"])
    for tag in ("return/real/max", "score/synthetic/mean", "critic_loss/real/mean", "diverged/real"):
        assert shown(layout, tag)
    for tag in ("refresh/held_out/min", "refresh/fit_seconds", "speed/updates_per_second"):
        assert shown(layout, tag)
