"""A real Ray cluster on this machine: runs at once, killed, refused, interrupted, and without shared storage."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest

from synther.errors import ConfigError
from synther.experiments import engines
from synther.experiments.engines import Outcome, connected, run_all
from synther.locks import driver_lock, owned
from synther.progress import Phase

from . import counting
from .counting import NUMBERS, Broken, Counting, Endless, Killed, Meeting, Refusing

SMALL = {"engine": "ray", "cpus": 0.25}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RAY_ADDRESS", raising=False)
        with connected(show_progress=True):
            from ray import cloudpickle

            cloudpickle.register_pickle_by_value(counting)  # workers cannot import what is no package
            yield
            cloudpickle.unregister_pickle_by_value(counting)


@dataclass
class Noted:
    """Progress as it was reported."""

    advanced: list[str] = field(default_factory=list)
    phases: list[tuple[str, int, int]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        self.phases.append((name, total, start))
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.advanced += [note] * amount


@dataclass(frozen=True)
class Ran:
    out: Path
    outcomes: dict[str, Outcome]
    tasks: dict[str, Counting]
    progress: Noted
    log: list[str]
    shown: str

    def result(self, name: str) -> list[int]:
        return json.loads((self.out / name / "result.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    """A list of runs of all kinds."""
    out, diary = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("diary")
    tasks = [
        Meeting("one", diary, "other"),
        Meeting("other", diary, "one"),
        Killed("killed", diary),
        Refusing("refusing", diary),
        Broken("broken", diary),
        Counting("done", diary),
        Counting("taken", diary),
    ]
    (out / "done").mkdir()
    (out / "done" / "result.json").write_text("[]")
    progress, said, shown = Noted(), _Heard(), StringIO()
    logging.getLogger("synther").addHandler(said)
    with owned(driver_lock(out / "taken")), redirect_stderr(shown):
        outcomes = run_all(tasks, out, progress=progress, **SMALL)
        until = time.monotonic() + 30
        while shown.getvalue().count("100 % of 5") < 3 and time.monotonic() < until:  # what Ray still has to show
            time.sleep(0.05)
    logging.getLogger("synther").removeHandler(said)
    assert [outcome.name for outcome in outcomes] == [task.name for task in tasks]
    return Ran(
        out, {o.name: o for o in outcomes}, {task.name: task for task in tasks}, progress, said.texts, shown.getvalue()
    )


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_runs_at_once(ran):
    assert ran.outcomes["one"].error is ran.outcomes["other"].error is None
    assert ran.result("one") == ran.result("other") == NUMBERS
    assert ran.outcomes["one"].seconds > 0


def test_a_killed_worker_is_taken_up_where_it_was(ran):
    assert ran.outcomes["killed"].error is None
    assert ran.result("killed") == NUMBERS
    assert ran.tasks["killed"].begun_at() == [0, 3]
    assert any(text.startswith("killed: its worker died") for text in ran.log)


def test_a_refusal_is_told_and_not_tried_again(ran):
    assert ran.outcomes["refusing"].error == "expected rows, got none: choose another file"
    assert ran.tasks["refusing"].begun_at() == [0]


def test_a_defect_is_told_with_its_traceback_and_not_tried_again(ran):
    assert ran.outcomes["broken"].error == "ZeroDivisionError: a defect"
    assert any(text.startswith("broken: broken failed") and "counting.py" in text for text in ran.log)
    assert ran.tasks["broken"].begun_at() == [0]


def test_a_run_sees_its_share_of_the_machine(ran):
    assert ran.tasks["killed"].machine() == ["", "1"]


def test_what_is_done_is_left_alone(ran):
    assert ran.outcomes["done"] == Outcome("done", was_done=True)
    assert ran.tasks["done"].begun_at() == []


def test_what_another_driver_has_taken_is_left_to_it(ran):
    assert f"process {os.getpid()} on " in ran.outcomes["taken"].error
    assert ran.tasks["taken"].begun_at() == []


def test_progress_counts_the_runs(ran):
    assert ran.progress.phases == [("runs", 7, 2)]
    assert sorted(ran.progress.advanced) == ["broken", "killed", "one", "other", "refusing"]


def test_progress_of_runs_is_shown(ran):
    """Ray forwards what workers print as well as it can; on a busy machine some lines may be missing."""
    assert any(f"{name}: count: 100 % of 5" in ran.shown for name in ("one", "other", "killed"))


def test_log_records_come_home(ran):
    assert "refusing: these rows look bad" in ran.log


def test_no_lock_is_left(ran):
    assert {path.name for path in ran.out.iterdir()} == {"one", "other", "killed", "done"}


def test_a_worker_that_always_dies_is_given_up(tmp_path):
    task = Killed("mortal", tmp_path)
    (outcome,) = run_all([task], tmp_path / "out", attempts=1, progress=False, **SMALL)
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
    (outcome,) = run_all([task], tmp_path / "out", progress=False, **SMALL)
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
        run_all([task], out, progress=False, **SMALL)
    worker = int((tmp_path / "process").read_text())
    until = time.monotonic() + 60
    while _lives(worker):
        assert time.monotonic() < until
        time.sleep(0.05)
    (outcome,) = run_all([task], out, progress=False)
    assert outcome.error is None
    assert task.begun_at() == [0, 1]
    assert json.loads((out / "endless" / "result.json").read_text()) == NUMBERS


def _lives(process: int) -> bool:
    """A zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_more_than_any_machine_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no machine has the 64 GPUs and 1 cores of a run: they have 0 GPUs"):
        run_all([Counting("one", tmp_path)], tmp_path / "out", engine="ray", gpus=64, cpus=1, progress=False)
    assert not list((tmp_path / "out").iterdir())
