"""What a worker tells its driver, without a cluster."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from synther.experiments.engines import parcel
from synther.experiments.engines.ray_worker import Began, Ended, Message, Order, Sent, Wanted, work
from synther.experiments.engines.reports import Advanced, Closed, Logged, Opened
from synther.locks import driver_lock, owned

from .counting import NUMBERS, Broken, Counting, Full, Refusing


@pytest.fixture(autouse=True)
def restored(monkeypatch) -> None:
    """What a worker sets in a process that it has for itself."""
    for name in ("CUDA_VISIBLE_DEVICES", "SYNTHER_CORES"):
        monkeypatch.setenv(name, "before")
    ours = logging.getLogger("synther")
    monkeypatch.setattr(ours, "handlers", list(ours.handlers))
    monkeypatch.setattr(ours, "level", ours.level)


def order(task: Counting, folder: Path, proof: str = "", **changed) -> Order:
    options = {"begun": folder.exists(), "parcel": None, "gpus": 0.5, "cores": 3, "level": logging.INFO}
    return Order(task, folder, proof, **{**options, "parcel_seconds": 60.0, **changed})


def apart(messages: list[Message]) -> list[Message]:
    return [message for message in messages if not isinstance(message, Sent)]


def test_works_where_the_driver_does_if_it_sees_it(tmp_path):
    folder = tmp_path / "out" / "one"
    with owned(driver_lock(folder)) as proof:
        told = list(work(order(Counting("one", tmp_path), folder, proof)))
    assert isinstance(told[0], Began)
    assert told[1] == Opened(0, "count", 5, 0)
    assert sum(message.amount for message in told if isinstance(message, Advanced)) == 5
    assert told[-2:] == [Closed(0), Ended()]
    assert json.loads((folder / "result.json").read_text()) == NUMBERS
    assert apart(told) == told


def test_works_elsewhere_if_it_does_not(tmp_path):
    folder = tmp_path / "out" / "one"
    told = list(work(order(Counting("one", tmp_path), folder)))
    assert isinstance(told[-2], Sent)
    assert told[-1] == Ended()
    assert not folder.exists()
    parcel.unpack(told[-2].parcel, folder)
    assert json.loads((folder / "result.json").read_text()) == NUMBERS


def test_asks_for_a_folder_that_has_been_begun(tmp_path):
    folder, task = tmp_path / "out" / "one", Counting("one", tmp_path)
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_text(json.dumps(NUMBERS[:2]))
    assert list(work(order(task, folder))) == [Wanted()]
    told = list(work(order(task, folder, parcel=parcel.pack(folder))))
    assert told[-1] == Ended()
    assert task.begun_at() == [2]


@pytest.mark.parametrize(("gpus", "seen"), [(0.0, ""), (0.5, "before")])
def test_sees_what_it_was_given(tmp_path, gpus, seen):
    list(work(order(Counting("one", tmp_path), tmp_path / "one", gpus=gpus)))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert os.environ["SYNTHER_CORES"] == "3"


def test_tells_a_refusal_and_what_was_logged(tmp_path):
    told = list(work(order(Refusing("one", tmp_path), tmp_path / "one", level=logging.WARNING)))
    assert Logged(logging.WARNING, "these rows look bad") in told
    assert told[-1] == Ended("expected rows, got none: choose another file")


def test_tells_only_what_the_driver_wants_to_hear(tmp_path):
    told = list(work(order(Refusing("one", tmp_path), tmp_path / "one", level=logging.ERROR)))
    assert not [message for message in told if isinstance(message, Logged)]


def test_a_full_disk_is_no_defect(tmp_path):
    ended = list(work(order(Full("one", tmp_path), tmp_path / "one")))[-1]
    assert isinstance(ended, Ended)
    assert (ended.error or "").startswith("[Errno ")
    assert not ended.trace


def test_tells_a_defect_with_its_traceback(tmp_path):
    ended = list(work(order(Broken("one", tmp_path), tmp_path / "one")))[-1]
    assert isinstance(ended, Ended)
    assert ended.error == "ZeroDivisionError: a defect"
    assert "counting.py" in ended.trace
