"""A real Ray cluster on this machine: runs at once, killed, refused, interrupted, and without shared storage."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from synther import Synthesizer, engines, read, write
from synther.cli import main
from synther.engines import Outcome, connected, run_all
from synther.errors import ConfigError
from synther.locks import driver_lock, owned
from synther.synthesizer import shards

from ..support.processes import eventually, gone
from ..support.watch import Watch
from ..synthesizer.rows import QUICK, made
from . import counting
from .counting import NUMBERS, Broken, Counting, Endless, Killed, Meeting


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RAY_ADDRESS", raising=False)
        patched.setitem(sys.modules, "ray.dashboard.optional_deps", None)  # without a dashboard it starts faster
        with connected(show_progress=True):
            from ray import cloudpickle

            cloudpickle.register_pickle_by_value(counting)  # workers cannot import what is no package
            yield
            cloudpickle.unregister_pickle_by_value(counting)


@pytest.mark.slow
def test_fits_several_models(tmp_path, monkeypatch):
    """Workers find the data from wherever they work, and make the models that this process makes."""
    write(made(), tmp_path / "data.npz")
    monkeypatch.chdir(tmp_path)
    tiny = ["--network.width", "8", "--network.depth", "1", "--fit.steps", "4", "--sampler.steps", "2", "--json"]
    for out, engine in (("there", "ray"), ("here", "local")):
        assert main(["fit", "data.npz", "--models", "2", "--out", out, "--engine", engine, *tiny]) == 0
    models = [Synthesizer.load(f"{out}/seed-1/model.safetensors") for out in ("there", "here")]
    first, second = (model.sample(5, seed=0, progress=False) for model in models)
    np.testing.assert_array_equal(first.observation, second.observation)


def result(folder: Path) -> list[int]:
    return json.loads((folder / "result.json").read_text())


def test_runs_at_once_and_each_to_its_own_end(tmp_path, caplog):
    out = tmp_path / "out"
    killed, meeting = Killed("killed", tmp_path), Meeting("meeting", tmp_path, "killed")
    broken, done, taken = Broken("broken", tmp_path), Counting("done", tmp_path), Counting("taken", tmp_path)
    (out / "done").mkdir(parents=True)
    (out / "done" / "result.json").write_text("[]")
    progress, shown = Watch(), StringIO()
    with owned(driver_lock(out / "taken")), redirect_stderr(shown):
        outcomes = run_all([killed, meeting, broken, done, taken], out, progress=progress, engine="ray")
        # Ray forwards what workers print as well as it can; on a busy machine some lines may be missing.
        assert eventually(lambda: ": count: 100 % of 5" in shown.getvalue())
    found = {outcome.name: outcome for outcome in outcomes}
    assert list(found) == ["killed", "meeting", "broken", "done", "taken"]

    assert found["meeting"].error is None
    assert found["meeting"].seconds > 0
    assert found["killed"].error is None
    assert killed.begun_at() == [0, 3]  # it was taken up where it was
    assert "killed: its worker died" in caplog.text
    assert killed.machine() == ["", "1"]  # its share
    assert result(out / "killed") == result(out / "meeting") == NUMBERS

    assert found["broken"].error == "ZeroDivisionError: a defect"
    assert broken.begun_at() == [0]
    assert any(text.startswith("broken: broken failed") and "counting.py" in text for text in caplog.messages)
    assert "broken: these rows look bad" in caplog.messages

    assert found["done"] == Outcome("done", was_done=True)
    assert f"process {os.getpid()} on " in found["taken"].error
    assert done.begun_at() == taken.begun_at() == []

    assert progress.phases == [["runs", 5, 2, 5]]
    assert sorted(progress.notes) == ["broken", "killed", "meeting"]
    assert {path.name for path in out.iterdir()} == {"meeting", "killed", "done"}  # no lock is left


def test_a_worker_that_always_dies_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ATTEMPTS", 1)
    task = Killed("mortal", tmp_path)
    (outcome,) = run_all([task], tmp_path / "out", progress=False, engine="ray")
    assert outcome.error.startswith("its worker died in attempt 1 of 1 (")
    assert task.begun_at() == [0]


def test_a_folder_that_workers_do_not_see_is_refused(tmp_path, monkeypatch):
    """The path exists on the worker, and it is another folder than the driver's: its lock says something else."""

    @contextmanager
    def on_another_disk(lock: Path) -> Iterator[str]:
        with owned(lock):
            yield "the text of the driver's lock"

    monkeypatch.setattr(engines, "owned", on_another_disk)
    task = Counting("one", tmp_path)
    (outcome,) = run_all([task], tmp_path / "out", progress=False, engine="ray")
    assert str(tmp_path / "out" / "one") in outcome.error
    assert "storage" in outcome.error
    assert task.begun_at() == []
    assert list((tmp_path / "out").iterdir()) == []


def test_interrupted_all_stop_and_can_go_on(tmp_path):
    def interrupt() -> None:
        counting.wait_for(tmp_path / "process")
        os.kill(os.getpid(), signal.SIGINT)

    out, task = tmp_path / "out", Endless("endless", tmp_path)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_all([task], out, progress=False, engine="ray")
    assert gone([int((tmp_path / "process").read_text())])
    (outcome,) = run_all([task], out, progress=False)
    assert outcome.error is None
    assert task.begun_at() == [0, 1]
    assert result(out / "endless") == NUMBERS


def test_more_than_any_machine_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="64 GPUs"):
        run_all([Counting("one", tmp_path)], tmp_path / "out", engine="ray", gpus=64, progress=False)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_workers_write_the_rows_of_a_single_process(tmp_path, monkeypatch):
    """With a sampler that is not the model's own: what it needs is found out once, here."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)  # a block
    monkeypatch.setattr(shards, "SHARES", 2)
    model = Synthesizer("laptop", **QUICK).fit(made(300), progress=False)
    count, how = 3 * 512 + 10, {"sampler": {"steps": 3}, "seed": 1, "progress": False}
    model.sample_to(tmp_path / "rows", count, **how, engine="ray")
    assert len(list((tmp_path / "rows").glob("*.parquet"))) == 4
    assert read(tmp_path / "rows").equals(model.sample(count, **how))
