"""On this machine, one after another or several at once, and what every engine refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from synther.engines import Outcome, check_address, connected, run_all, share
from synther.errors import ConfigError, MissingExtra
from synther.locks import Owned, driver_lock, owned, worker_lock
from synther.progress import Lines

from ..support.processes import gone
from .counting import NUMBERS, Broken, Counting, Endless, Full, Killed, Meeting, Refusing, wait_for


def test_the_others_go_on(tmp_path, capsys, caplog):
    out = tmp_path / "out"
    tasks = [Refusing("bad", tmp_path), Full("full", tmp_path), Broken("broken", tmp_path), Counting("good", tmp_path)]
    bad, full, broken, good = run_all(tasks, out, progress=Lines())
    assert bad.error == "expected rows, got none: choose another file"
    assert full.error == f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    assert broken.error == "ZeroDivisionError: a defect"
    assert caplog.text.count("Traceback") == 1  # a full disk is no defect
    assert (good.error, good.seconds > 0) == (None, True)
    assert json.loads((out / "good" / "result.json").read_text()) == NUMBERS
    assert "good: count: 100 % of 5" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"good"}


def test_ctrl_c_stops_at_once(tmp_path):
    class Interrupted(Counting):
        def before(self, index: int) -> None:
            raise KeyboardInterrupt

    other = Counting("other", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_all([Interrupted("one", tmp_path), other], tmp_path / "out", progress=False)
    assert other.begun_at() == []
    assert run_all([other], tmp_path / "out", progress=False)[0].error is None


def test_several_at_once_in_processes_of_their_own(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SYNTHER_CORES", "5")
    out, killed = tmp_path / "out", Killed("killed", tmp_path)
    tasks = [Meeting("one", tmp_path, "two"), Meeting("two", tmp_path, "one"), Broken("broken", tmp_path), killed]
    one, two, broken, lost = run_all(tasks, out, parallel=2, progress=Lines())
    assert (one.name, two.name, one.error, two.error) == ("one", "two", None, None)
    assert (one.seconds > 0, one.was_done) == (True, False)
    assert broken.error == "ZeroDivisionError: a defect"
    assert lost.error.startswith("its process ended with exit code -9")
    assert killed.machine()[1] == "2"
    assert os.environ["SYNTHER_CORES"] == "5"
    told = capfd.readouterr().err.splitlines()
    assert "synther: broken: these rows look bad" in told
    for name in ("one", "two"):
        assert sum(line.startswith(f"{name}: count: 100 % of 5") for line in told) == 1
        assert json.loads((out / name / "result.json").read_text()) == NUMBERS
    again = run_all([tasks[0], killed], out, parallel=2, progress=False)
    assert [(outcome.error, outcome.was_done) for outcome in again] == [(None, True), (None, False)]
    assert killed.begun_at() == [0, 3]
    assert capfd.readouterr().err == ""


STARTS = """
import sys
from pathlib import Path
from synther.cli import main
from synther.engines import run_all
from tests.engines.counting import Counting, Endless

def several(arguments):
    here = Path(arguments[0])
    tasks = [Endless("one", here / "first"), Endless("two", here / "second"), Counting("three", here)]
    run_all(tasks, here / "out", parallel=2)

if __name__ == "__main__":
    import synther.cli.paper as verb
    verb.paper = several
    sys.exit(main(["paper", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("how", "send"),
    [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill), (signal.SIGKILL, os.kill)],
    ids=["interrupted by a terminal", "terminated", "killed"],
)
def test_a_signal_stops_all_processes_and_the_same_call_resumes(tmp_path, how, send):
    (tmp_path / "start.py").write_text(STARTS)
    tasks = [Endless("one", tmp_path / "first"), Endless("two", tmp_path / "second"), Counting("three", tmp_path)]
    for task in tasks[:2]:
        task.diary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "start.py"), str(tmp_path)]
    own: dict = {"stderr": subprocess.PIPE, "text": True, "env": environment, "start_new_session": True}
    with subprocess.Popen(command, **own) as parent:
        for task in tasks[:2]:
            wait_for(task.diary / "process")
        send(parent.pid, how)
        _, err = parent.communicate(timeout=60)
    if how is not signal.SIGKILL:
        assert (parent.returncode, err.splitlines()[-1].startswith("synther: interrupted")) == (1, True)
        assert "Traceback" not in err
        assert list((tmp_path / "out").glob(".*.lock")) == []
    assert gone(int((task.diary / "process").read_text()) for task in tasks[:2])
    assert tasks[2].begun_at() == []
    outcomes = run_all(tasks, tmp_path / "out", parallel=2, progress=False)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [task.begun_at() for task in tasks] == [[0, 1], [0, 1], [0]]


@pytest.mark.parametrize("lock", [driver_lock, worker_lock])
def test_what_another_process_works_on_is_left_to_it(tmp_path, lock):
    """And a lock that its owner could not remove holds nobody up."""
    out, task = tmp_path / "out", Counting("one", tmp_path)
    code = (
        "import sys, os, pathlib\n"
        "from synther.locks import owned\n"
        "with owned(pathlib.Path(sys.argv[1])):\n"
        "    print('owned', flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(1)\n"
    )
    command = [sys.executable, "-c", code, str(lock(out / "one"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "owned\n"
        (outcome,) = run_all([task], out, progress=False)
        assert f"process {owner.pid} on " in outcome.error
        assert task.begun_at() == []
        owner.stdin.close()
    assert lock(out / "one").exists()
    assert run_all([task], out, progress=False)[0].error is None


def test_a_lock_can_be_waited_for(tmp_path):
    lock = tmp_path / "lock"
    with owned(lock), pytest.raises(Owned), owned(lock, patience=0.1):
        pass
    code = (
        "import sys, fcntl, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(0.25)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        with owned(lock, patience=20) as text:
            assert lock.read_text() == text
    assert not lock.exists()


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def flock(*given):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with owned(tmp_path / "lock"):
        pass
    assert "has no locks" in caplog.text
    assert list(tmp_path.iterdir()) == []


@dataclass
class Named:
    name: str
    executed: list[Path] = field(default_factory=list)

    def done(self, folder: Path) -> bool:
        return False

    def execute(self, folder: Path, progress: object) -> None:
        self.executed.append(folder)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_folder_that_cannot_be_read_stops_nobody_else(tmp_path, engine):
    class Lost(Named):
        def done(self, folder: Path) -> bool:
            return bool((folder / "run.json").read_text())

    class Done(Named):
        def done(self, folder: Path) -> bool:
            return True

    lost, done = run_all([Lost("lost"), Done("done")], tmp_path, engine=engine, progress=False)
    assert "No such file" in str(lost.error)
    assert done == Outcome("done", was_done=True)


def test_refusals_come_before_any_work(tmp_path):
    task, file = Named("one"), tmp_path / "file"
    file.write_text("")
    for name in ("", ".", "..", "a/b", "/a", ".hidden"):
        with pytest.raises(ConfigError, match="name of a run"):
            run_all([Named(name)], tmp_path, progress=False)
    with pytest.raises(ConfigError, match="several called one"):
        run_all([task, Named("one")], tmp_path, progress=False)
    for out in (file, file / "runs"):
        with pytest.raises(ConfigError, match=f"^{file} is a file: choose a folder$"):
            run_all([task], out, progress=False)
    with pytest.raises(ConfigError, match="expected local or ray"):
        run_all([task], tmp_path, engine="slurm", progress=False)
    with pytest.raises(ConfigError, match="parallel must be"):
        run_all([task], tmp_path, parallel=0, progress=False)
    for wrong in ({"gpus": -1}, {"gpus": 1.5}, {"parallel": 2}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
            run_all([task], tmp_path, engine="ray", progress=False, **wrong)
    for wrong in ({"gpus": 1}, {"address": "10.0.0.1:6379"}):
        with pytest.raises(ConfigError, match="engine ray"):
            run_all([task], tmp_path, progress=False, **wrong)
    assert task.executed == []
    assert list(tmp_path.iterdir()) == [file]


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"synther\[ray\]"), connected(None):
        pass


@pytest.mark.parametrize("address", ["somewhere", "ray://10.0.0.1:10001", "localhost:many"])
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match=r"such as 10\.0\.0\.1:6379"):
        check_address(address)


def test_nobody_answers():
    """And whoever does is taken for a cluster."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match="ray start"):
            check_address(address)
        listener.listen()
        check_address(address)


@pytest.mark.parametrize(
    ("gpus", "machines", "expected"),
    [
        (None, [{"CPU": 4.0}], (0, 1)),
        (None, [{"CPU": 64.0, "GPU": 8.0}, {"CPU": 16.0}], (1, 8)),
        (0.25, [{"CPU": 16.0, "GPU": 1.0}], (0.25, 4)),
        (0.1, [{"CPU": 4.0, "GPU": 1.0}], (0.1, 1)),
        (2, [{"CPU": 16.0, "GPU": 1.0}, {"CPU": 32.0, "GPU": 4.0}], (2, 16)),
        (0, [{"CPU": 4.0, "GPU": 2.0}], (0, 1)),
    ],
)
def test_the_share_of_a_run(gpus, machines, expected):
    assert share(gpus, machines) == expected


def test_no_machine_has_it():
    with pytest.raises(ConfigError, match="they have 1 GPUs and 4 cores, 0 GPUs and 8 cores"):
        share(2, [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}])
    with pytest.raises(ConfigError, match="they have 0 GPUs and 0 cores"):
        share(None, [{}])
