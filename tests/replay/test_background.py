"""A refresh in another process, which is real here but has little to do."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from synther.progress import Silent
from synther.replay import background, worker
from synther.replay.refit import Job
from synther.replay.synthetic import SyntheticReplay

from .rows import TINY, numbered, tiny

ENDLESS = TINY.changed(fit={"steps": 10**9, "patience": 10**9, "evaluate_every": 10**9})


def until_over(replay: SyntheticReplay) -> None:
    _, running = replay._running
    running._process.wait(60)


def test_batches_stay_old_until_the_new_rows_are_there_and_are_those_of_the_foreground(monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('a module that no script of another folder finds')")
    monkeypatch.chdir(tmp_path)
    replay, waited = tiny(background=True), tiny()
    for one in (replay, waited):
        one.add(**numbered(0, 100))
    assert replay.history == []
    assert not replay.sample(64).synthetic.any()
    folder, process = replay._running[1]._folder, replay._running[1]._process
    assert os.getpgid(process.pid) == process.pid  # so that Ctrl-C is not for it
    replay.add(**numbered(100, 150))  # another is due meanwhile: it has to wait for this one
    replay.wait()
    replay.wait()  # for nothing
    assert int(replay.sample(64).synthetic.sum()) == 32
    assert [(r.added, r.kept) for r in replay.history] == [(100, True)]
    assert replay.history[0].held_out == waited.history[0].held_out
    assert np.array_equal(replay.synthetic.by_age(), waited.synthetic.by_age())
    assert not folder.exists()
    replay.add(**numbered(250, 1))
    assert replay._running is not None
    assert replay._running[0].added == 251
    replay.close()


@pytest.fixture
def threads(monkeypatch):
    """Sets how many there are, for a test; what others have left unfinished has none of them."""
    monkeypatch.setattr(background, "THREADS", background.Threads())
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def python(monkeypatch, tmp_path):
    """Puts a shell script in the place of the interpreter that a refresh is run by."""

    def script(lines: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return script


def test_the_agent_and_the_process_share_the_threads_while_both_work(threads, python):
    python('echo first >&2\necho "$OMP_NUM_THREADS threads" >&2\nexit 3')  # what it says last is the reason
    threads(5)
    replays = [tiny(background=True) for _ in range(2)]
    for replay in replays:
        replay.add(**numbered(0, 100))
        assert torch.get_num_threads() == 3
    for replay in replays:
        until_over(replay)
        assert torch.get_num_threads() == 3
        replay.sample(4)
        assert replay.history[0].reason == "2 threads (exit code 3)"
    assert torch.get_num_threads() == 5
    replays[0].refresh()
    threads(4)  # the agent's own choice, meanwhile
    replays[0].close()
    assert torch.get_num_threads() == 4


def test_a_single_thread_is_kept_and_one_that_could_not_begin_takes_none(threads, monkeypatch, tmp_path):
    replay = tiny(background=True, preset=ENDLESS)
    for count in (1, 8):
        threads(count)
        replay.add(**numbered(0, 100))
        assert torch.get_num_threads() == max(1, count // 2)
        replay.close()
        assert torch.get_num_threads() == count
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replay.add(**numbered(0, 100))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    replay.refresh()
    assert ["could not start" in refresh.reason for refresh in replay.history] == [True, True]
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == 8


def test_a_process_that_dies_leaves_the_old_rows_and_is_tried_again(caplog):
    replay = tiny(background=True, preset=ENDLESS)
    replay.add(**numbered(0, 100))
    folder = replay._running[1]._folder
    replay._running[1]._process.kill()
    until_over(replay)
    with caplog.at_level(logging.WARNING):
        replay.add(**numbered(100, 50))
    assert "the refresh after 100 rows failed, batches stay real: " in caplog.text
    assert "exit code -9" in replay.history[0].reason
    assert not folder.exists()
    assert replay._running is None
    replay.add(**numbered(150, 50))
    assert replay._running is not None
    replay.close()


@pytest.mark.parametrize("damage", ["no folder", "no folder of one that failed", "no model", "no rows", "no numbers"])
def test_what_a_process_left_and_nobody_can_read_is_a_refresh_that_failed(damage, python):
    python(f"exit {int(damage == 'no folder of one that failed')}")
    before, replay = tiny(), tiny(background=True)
    for one in (before, replay):
        one.add(**numbered(0, 100))
    until_over(replay)
    folder = replay._running[1]._folder
    if damage.startswith("no folder"):
        shutil.rmtree(folder)
    elif damage == "no model":
        (folder / "model.safetensors").write_bytes(b"half of it")
    else:
        before.model.save(folder / "model.safetensors")
        rows = {"other" if damage == "no rows" else "rows": np.zeros((1, 10), np.float32)}
        save_file(rows, folder / "rows.safetensors")
        (folder / "seconds.json").write_text('{"fit_seconds": ')
    replay.add(**numbered(100, 1))
    assert "cannot be read" in replay.history[0].reason
    assert replay.model is None
    assert len(replay) == 101


def test_the_process_says_in_one_line_what_went_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "leave_with_parent", lambda folder: None)
    monkeypatch.setattr(os, "nice", lambda niceness: niceness)
    replay = tiny(ratio=0, preset=TINY.changed(fit={"learning_rate": 1e30}))
    replay.add(**numbered(0, 100))
    replay.job_on(replay.transitions()).save(tmp_path)
    with pytest.raises(SystemExit, match=r"the loss is .* lower fit\.learning_rate"):
        worker.main(tmp_path)


@pytest.mark.parametrize("rows", [100, 50], ids=["due", "asked for"])
def test_saved_or_copied_while_a_refresh_is_under_way_it_is_due_again(rows, tmp_path):
    """Also if it was asked for, though no multiple of the rows says so."""
    replay = tiny(background=True, preset=ENDLESS)
    replay.add(**numbered(0, rows))
    if rows == 50:
        assert not replay.due(replay.added)
        replay.refresh()
    replay.save(tmp_path / "replay")
    copies = copy.deepcopy(replay), pickle.loads(pickle.dumps(replay))
    assert replay._running is not None
    replay.close()
    loaded = SyntheticReplay.load(tmp_path / "replay", device="cpu", progress=False)
    expected = replay.sample(20).reward
    for one in (*copies, loaded):
        assert torch.equal(one.sample(20).reward, expected)
    for one in (replay, *copies, loaded):
        assert one._running is None
        assert one.due(one.added)
        one.add(**numbered(rows, 1))
        assert one._running is not None
        assert not one._owed
        one.close()


class Over:
    """A process that needs no time."""

    done = True

    def __init__(self, job: Job) -> None:
        self.result = lambda: job.run(Silent())

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pytest.fail("its rows are lost")


LOOKS = {
    "history": lambda replay, path: replay.history,
    "model": lambda replay, path: replay.model,
    "in words": lambda replay, path: repr(replay),
    "copy": lambda replay, path: copy.deepcopy(replay),
    "save": lambda replay, path: replay.save(path / "replay"),
    "wait": lambda replay, path: replay.wait(),
    "refresh": lambda replay, path: replay.refresh(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_over_is_seen_by_whoever_looks(look, tmp_path, monkeypatch):
    """And lost by nobody who saves, copies, or asks for another."""
    monkeypatch.setattr("synther.replay.rows.Background", Over)
    replay = tiny(background=True)
    replay.add(**numbered(0, 100))
    assert replay._history == []
    LOOKS[look](replay, tmp_path)
    assert [refresh.kept for refresh in replay._history] == [True]
    assert len(replay.synthetic) == 300
    if look == "save":
        assert SyntheticReplay.load(tmp_path / "replay", device="cpu").model is not None


def test_the_process_ends_with_the_replay_but_not_with_a_fork_of_it(monkeypatch):
    replay = tiny(background=True, preset=ENDLESS)
    replay.add(**numbered(0, 100))
    process, folder = replay._running[1]._process, replay._running[1]._folder
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        _, how, given, _ = replay._running[1]._end.peek()
        how(*given)
    assert process.poll() is None
    assert folder.exists()
    del replay
    assert process.poll() is not None
    assert not folder.exists()


def test_the_process_ends_with_the_one_that_began_it():
    replay = tiny(background=True, preset=ENDLESS)
    replay.add(**numbered(0, 100))
    process, folder = replay._running[1]._process, replay._running[1]._folder
    assert process.poll() is None
    process.stdin.close()  # as the system does for a process that was killed
    assert process.wait(60) == 1
    assert not folder.exists()
