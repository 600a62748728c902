"""A real Ray cluster on this machine: runs at once, killed, refused, interrupted, and where no disk is shared."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from synther.errors import ConfigError
from synther.experiments.engines import Outcome, ray_cluster, run_all
from synther.experiments.engines.ray_cluster import connected
from synther.locks import driver_lock, owned
from synther.progress import Phase, Silent

from . import counting
from .counting import NUMBERS, Counting, Endless, Killed, Meeting, Refusing

SMALL = {"engine": "ray", "cpus": 0.25}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RAY_ADDRESS", raising=False)
        with connected(None):
            from ray import cloudpickle

            cloudpickle.register_pickle_by_value(counting)  # workers cannot import what is no package
            yield
            cloudpickle.unregister_pickle_by_value(counting)


@dataclass
class Noted:
    """Progress as it was reported."""

    phases: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    open: int = 0

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        told = self.phases.setdefault(name, [])
        told.append((start, f"of {total}"))

        class Now:
            def advance(self, amount: int, note: str = "") -> None:
                told.append((amount, note))

        self.open += 1
        yield Now()
        self.open -= 1


@dataclass(frozen=True)
class Ran:
    out: Path
    outcomes: dict[str, Outcome]
    tasks: dict[str, Counting]
    progress: Noted
    log: list[str]

    def result(self, name: str) -> list[int]:
        return json.loads((self.out / name / "result.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    """A list of runs of all kinds."""
    out, diary = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("diary")
    tasks = [
        Meeting("one", diary, "other"),
        Meeting("other", diary, "one"),
        Killed("killed", diary, out / "killed"),
        Refusing("refusing", diary),
        Counting("done", diary),
        Counting("taken", diary),
    ]
    (out / "done").mkdir()
    (out / "done" / "result.json").write_text("[]")
    progress, said = Noted(), _Heard()
    logging.getLogger("synther").addHandler(said)
    with owned(driver_lock(out / "taken")):
        outcomes = run_all(tasks, out, progress=progress, **SMALL)
    logging.getLogger("synther").removeHandler(said)
    assert [outcome.name for outcome in outcomes] == [task.name for task in tasks]
    return Ran(out, {o.name: o for o in outcomes}, {task.name: task for task in tasks}, progress, said.texts)


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
    assert any(text.startswith("killed begins attempt 2 of 3: its process died") for text in ran.log)


def test_a_refusal_is_told_and_not_tried_again(ran):
    assert ran.outcomes["refusing"].error == "expected rows, got none: choose another file"
    assert ran.tasks["refusing"].begun_at() == [0]


def test_what_is_done_is_left_alone(ran):
    assert ran.outcomes["done"] == Outcome("done", was_done=True)
    assert ran.tasks["done"].begun_at() == []


def test_what_another_driver_has_taken_is_left_to_it(ran):
    assert f"process {os.getpid()} on " in ran.outcomes["taken"].error
    assert ran.tasks["taken"].begun_at() == []


def test_progress_comes_home(ran):
    assert ran.progress.open == 0
    assert ran.progress.phases["one: count"][0] == (0, "of 5")
    assert sum(amount for amount, _ in ran.progress.phases["one: count"]) == 5
    assert ran.progress.phases["one: count"][-1][1] == "at 20"
    assert (3, "of 5") in ran.progress.phases["killed: count"]


def test_log_records_come_home(ran):
    assert "refusing: these rows look bad" in ran.log


def test_no_lock_is_left(ran):
    assert {path.name for path in ran.out.iterdir()} == {"one", "other", "killed", "done"}


def test_a_worker_that_always_dies_is_given_up(tmp_path):
    task = Killed("mortal", tmp_path, tmp_path / "out" / "mortal")
    (outcome,) = run_all([task], tmp_path / "out", attempts=1, progress=False, **SMALL)
    assert outcome.error.startswith("its process died once (")
    assert task.begun_at() == [0]


def test_results_are_sent_home_from_another_file_system(tmp_path, monkeypatch):
    """Workers that do not see the driver's lock work elsewhere, on what is there, or has come home of one that died."""
    monkeypatch.setattr(ray_cluster, "owned", _seen_by_nobody)
    monkeypatch.setattr(ray_cluster, "_PARCEL_SECONDS", 0.05)
    folder = tmp_path / "out" / "killed"
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_text(json.dumps(NUMBERS[:1]))
    task = Killed("killed", tmp_path, folder)
    (outcome,) = run_all([task], tmp_path / "out", progress=False, **SMALL)
    assert outcome.error is None
    assert task.begun_at() == [1, 3]
    assert json.loads((folder / "result.json").read_text()) == NUMBERS
    assert sorted(file.name for file in folder.iterdir()) == ["checkpoint.json", "result.json"]


@contextmanager
def _seen_by_nobody(lock: Path) -> Iterator[str]:
    with owned(lock):
        yield "what is said elsewhere"


def test_interrupted_all_stop_and_can_go_on(tmp_path):
    class Impatient(Silent):
        """Ctrl-C once the run is in the middle."""

        def phase(self, name: str, total: int, start: int = 0):
            counting.wait_for(tmp_path / "process")
            raise KeyboardInterrupt

    out, task = tmp_path / "out", Endless("endless", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_all([task], out, progress=Impatient(), **SMALL)
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
