"""What TensorBoard and Weights & Biases are shown is what the log holds, once, whatever happened to the run."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from synther.errors import ConfigError, MissingExtra
from synther.experiments.record import Record, Schedule, figures
from synther.experiments.results import Measurement
from synther.experiments.sources import Given, TrainingData

from ..support.watch import Stopped, Watch
from .pendulum import swings
from .trainings import PLAN, TIMES, events, logged, run, same

pytestmark = pytest.mark.usefixtures("saved_every_time")

SHOWN = replace(PLAN, tensorboard="on")


def two_arms() -> TrainingData:
    arms = {"real": {"real": 1.0}, "other": {"synthetic": 1.0}}
    return TrainingData(swings(), {"synthetic": Given(swings(seed=1))}, arms)


def expected(folder: Path, arms: list[str]) -> dict[str, list[tuple[int, float]]]:
    """The same of the log, in the plainest words."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in logged(folder):
        of_members = dict(line["losses"])
        for name, rows in (("return", line["returns"]), ("score", line["scores"])):
            of_members[name] = [sum(episodes) / len(episodes) for episodes in rows]
        for name, values in of_members.items():
            for place, arm in enumerate(arms):
                own = values[2 * place : 2 * place + 2]
                for kind, value in (("mean", sum(own) / 2), ("min", min(own)), ("max", max(own))):
                    found.setdefault(f"{name}/{arm}/{kind}", []).append((line["updates"], pytest.approx(value)))
        for arm in arms:
            found.setdefault(f"diverged/{arm}", []).append((line["updates"], 0.0))
    return found


def test_events_are_the_log_also_after_interruptions(tmp_path, quick):
    for place in (30, 45):
        with pytest.raises(Stopped):
            run(tmp_path / "run", SHOWN, two_arms(), Watch(("train", place)))
    run(tmp_path / "run", SHOWN, two_arms())
    found = events(tmp_path / "run")
    speed = found.pop("speed/updates_per_second")
    assert found == expected(tmp_path / "run", ["real", "other"])
    seconds = [json.loads(line)["seconds"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rates = np.diff([0, *TIMES]) / np.diff([0, *seconds])
    assert speed == [(updates, pytest.approx(rate)) for updates, rate in zip(TIMES, rates, strict=True)]


def test_refreshes_of_generators_are_shown_once_beside_the_measurements(tmp_path):
    entries = [
        {"seed": seed, "added": added, "kept": seed < 2, "held_out": None if seed == 2 else seed + added / 10,
         "fit_seconds": 2.0, "sample_seconds": 1.0}
        for added in (10, 20) for seed in range(3)
    ]  # fmt: skip
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "refreshes.json").write_text(json.dumps({"refreshes": entries}))
    for _ in range(2):  # also where the run is resumed
        with Record(tmp_path, Schedule(10, 30), 0, ["sac"], [0, 1, 2], SHOWN) as record:
            for updates in (10, 30):
                record.add(Measurement(updates, updates / 10, {"critic": [1.0, 2.0, 3.0]}, None, None))
    found = events(tmp_path)
    assert found["refresh/held_out/mean"] == [(10, 1.5), (20, 2.5)]
    assert (found["refresh/failed"], found["refresh/fit_seconds"]) == ([(10, 1.0), (20, 1.0)], [(10, 6.0), (20, 6.0)])


def test_figures_leave_out_what_has_diverged():
    found = Measurement(5, 1.0, {"actor": [1.0, None, None, None]}, [[1.0, 3.0], None, None, None], None)
    assert figures(found, ["a", "b"]) == {
        "return/a/mean": 2.0, "return/a/min": 2.0, "return/a/max": 2.0,
        "actor/a/mean": 1.0, "actor/a/min": 1.0, "actor/a/max": 1.0,
        "diverged/a": 1.0, "diverged/b": 2.0,
    }  # fmt: skip


def test_a_tracker_that_fails_is_told_of_once_and_training_goes_on(done, tmp_path, monkeypatch, caplog):
    def full(*given, **named):
        raise OSError("no space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    run(tmp_path / "run", SHOWN)
    assert logged(tmp_path / "run") == logged(done)
    (said,) = caplog.messages
    assert said.startswith("TensorBoard failed (OSError: no space left on device)")


def test_where_tensorboard_is_not_installed(done, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delattr("torch.utils.tensorboard")
    with pytest.raises(MissingExtra, match=r"synther\[track\]"):
        run(tmp_path / "run", SHOWN)
    assert list(tmp_path.iterdir()) == []
    with caplog.at_level(logging.INFO):
        run(tmp_path / "run", replace(PLAN, tensorboard="auto"))
    assert caplog.text.count("pip install 'synther[track]'") == 1
    assert same(done, tmp_path / "run")


def test_weights_and_biases_get_every_measurement_once(tmp_path, quick, monkeypatch):
    import wandb

    begun, lines, signature = [], [], inspect.signature(wandb.init)

    class Run:
        step = 0
        """The next number that they would take."""

        def log(self, figures: dict[str, float], step: int, commit: bool) -> None:
            lines.append((step, figures))
            Run.step = step + 1

        def finish(self, exit_code: int) -> None:
            pass

    def init(**given) -> Run:
        signature.bind(**given)
        begun.append(given)
        return Run()

    monkeypatch.setattr(wandb, "init", init)
    followed = replace(PLAN, wandb="pendulum")
    with pytest.raises(Stopped):
        run(tmp_path / "run", followed, progress=Watch(("train", 30)))
    left = tmp_path / "run" / "wandb" / "offline-run-1"
    left.mkdir(parents=True)
    run(tmp_path / "run", followed)
    assert not left.exists()
    assert begun[0] == begun[1]
    assert begun[0]["project"] == "pendulum"
    for name, values in expected(tmp_path / "run", ["real"]).items():
        assert [(step, figures[name]) for step, figures in lines] == values


def test_weights_and_biases_without_a_key_a_network_or_the_library(done, tmp_path, monkeypatch, caplog):
    import wandb

    def fail_with(error: Exception) -> None:
        def init(**given):
            raise error

        monkeypatch.setattr(wandb, "init", init)

    followed = replace(PLAN, wandb="pendulum")
    fail_with(wandb.errors.UsageError("No API key configured. Use `wandb login` to log in."))
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        run(tmp_path / "run", followed)
    fail_with(wandb.errors.CommError("no network"))
    run(tmp_path / "run", followed)
    assert "Weights & Biases failed (CommError: no network)" in caplog.text
    assert logged(tmp_path / "run") == logged(done)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"synther\[track\]"):
        run(tmp_path / "other", followed)
    assert not (tmp_path / "other").exists()
