"""Fits that are watched in TensorBoard, and the layout of its page."""

from __future__ import annotations

import re
import sys

import pytest

from synther.cli import main
from synther.errors import MissingExtra
from synther.progress import Silent
from synther.trackers import Watched, of_runs

from .support import small_job
from .support.watch import Stopped, Watch

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


SMALL = ["--preset", "laptop", "--network.width", "8", "--network.depth", "1", "--fit.steps", "40"]
SMALL += ["--fit.batch-size", "64", "--fit.evaluate-every", "20", "--sampler.steps", "2"]
PLAYED = ["--seeds", "2", "--episodes", "1", "--workers", "1", "--agent.width", "8", "--tensorboard", "on"]
COMMANDS = {
    "fit": ["fit", "hopper-sac", "--fraction", "0.1", *SMALL, "--tensorboard", "--out", "run.safetensors"],
    "upsample": ["upsample", "hopper-sac", "--fraction", "0.1", *SMALL, "--samples", "50", "--tensorboard"],
    "offline": ["train", "td3_bc", "hopper-sac", *PLAYED, "--updates", "20", "--evaluate-every", "10"],
    "online": [
        *["online", "Pendulum-v1", "--synthetic", *SMALL, *PLAYED, "--samples", "50", "--steps", "60"],
        *["--learning-starts", "20", "--evaluate-every", "30", "--checkpoint-every", "30", "--refresh-every", "30"],
    ],
}
GROUPS = {
    "fit": {"Generator": ["loss"]},
    "upsample": {"Generator": ["loss", "against real rows"]},
    "offline": {
        "Agents": ["return", "return, real", "score", "score, real", "diverged seeds"],
        "Losses": ["actor", "critic"],
        "Speed": ["per second"],
    },
    "online": {
        "Agents": ["return", "return, sac_synther", "diverged seeds"],
        "Losses": ["actor", "critic", "entropy", "temperature"],
        "Generators": ["held-out loss", "seconds", "failed fits"],
        "Speed": ["per second"],
    },
}


def drawn(folder):
    """The charts of the layout, by group and title, with the curves that TensorBoard finds for each name in them."""
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
    from tensorboard.util.tensor_util import make_ndarray

    found = events(folder)
    tags, groups = found.Tags()["scalars"], {}
    (*_, latest) = found.Tensors("custom_scalars__config__")  # which its page takes
    for group in Layout.FromString(make_ndarray(latest.tensor_proto).item()).category:
        for chart in group.chart:
            if chart.margin.series:
                (band,) = chart.margin.series
                curves = [[tag for tag in tags if tag == name] for name in (band.value, band.lower, band.upper)]
            else:
                curves = [[tag for tag in tags if re.match(name, tag)] for name in chart.multiline.tag]
            groups.setdefault(group.title, {})[chart.title] = curves
    return groups, tags


def run(command):
    given = COMMANDS[command] if command == "fit" else [*COMMANDS[command], "--out", "run"]
    assert main([*given, "--quiet", "--device", "cpu"]) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_the_layout_shows_every_curve_and_names_no_other(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
    run(command)
    groups, tags = drawn(tmp_path / "run")
    assert {group: list(charts) for group, charts in groups.items()} == GROUPS[command]
    curves = [curve for charts in groups.values() for chart in charts.values() for curve in chart]
    assert all(curves)
    of_seeds = {tag for tag in tags if tag.endswith(("/min", "/max"))}
    assert {tag for found in curves for tag in found} >= set(tags) - of_seeds
    if command == "upsample":  # finished work has the curve of its fit still, and one comparison
        run(command)
        found = events(tmp_path / "run")
        assert [event.step for event in found.Scalars("fit/loss")] == [20, 40]
        assert len(found.Scalars("comparison/marginal")) == 1


def test_a_fit_that_was_interrupted_is_shown_whole(tmp_path):
    rows, watched = small_job.made(), Watched(tmp_path, Silent())
    model = small_job.model(fit={"steps": 40, "evaluate_every": 10, "checkpoint_every": 10})
    with pytest.raises(Stopped):
        model.fit(rows, checkpoint=tmp_path / "checkpoint", progress=Watch(("fit", 20)))
    model.fit(rows, checkpoint=tmp_path / "checkpoint", progress=watched)
    watched.close()
    assert [event.step for event in events(tmp_path).Scalars("fit/loss")] == [10, 20, 30, 40]


def test_runs_of_different_arms_share_their_charts():
    one, other = (of_runs({f"return/{arm}/mean", f"critic/{arm}/mean"}) for arm in ("sac", "sac_synther"))
    assert one == other
    assert one["Agents"] == {"return": ["Multiline", ["return/.*/mean$"]]}
    assert one["Losses"] == {"critic": ["Multiline", ["critic/.*/mean$"]]}
