"""Offline training that is stopped anywhere and taken up again ends as one that was not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from synther import write
from synther.agents.agent import Agent
from synther.durable import replacing
from synther.experiments import offline
from synther.experiments.evaluations import MOST_UNDER_WAY
from synther.experiments.measurements import Log
from synther.experiments.sources import Material

from .pendulum import Guess, Guessed, swings
from .trainings import PLAN, StopAt, Stopped, events, logged, run, same

pytestmark = pytest.mark.usefixtures("one_thread", "saved_every_time")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("places", "kept"), [([10], 0), ([30, 40], 30), ([45], 40), ([20, 20, 45], 40)], ids=str)
def test_stopped_while_it_trains(done, places, kept, slow, tmp_path, monkeypatch):
    monkeypatch.setattr(Guess, "slow", slow)
    for place in places:
        with pytest.raises(Stopped):
            run(tmp_path / "run", progress=StopAt(place))
        assert not (tmp_path / "run" / "result.json").exists()
    rest = StopAt(1_000)
    run(tmp_path / "run", progress=rest)
    assert (rest.start, rest.done) == (kept, 45)
    assert same(done, tmp_path / "run")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    ("places", "kept", "kept_slow"), [([8], 4, 4), ([18], 14, 10), ([8, 28], 24, 20), ([18, 45], 44, 40)], ids=str
)
def test_stopped_between_measurements(done, places, kept, kept_slow, slow, tmp_path, monkeypatch):
    """A checkpoint there waits until evaluations are over, or for the next measurement."""
    monkeypatch.setitem(offline._SHOWN_UPDATES, "cpu", 4)
    monkeypatch.setattr(Guess, "slow", slow)
    for place in places:
        with pytest.raises(Stopped):
            run(tmp_path / "run", progress=StopAt(place))
    rest = StopAt(1_000)
    run(tmp_path / "run", progress=rest)
    assert (rest.start, rest.done) == (kept_slow if slow else kept, 45)
    assert same(done, tmp_path / "run")


@pytest.fixture
def stopped_in(tmp_path, monkeypatch):
    """A run that was brought down before or after one of its calls."""

    def stop(owner, name: str, after: bool, call: int) -> Path:
        whole, calls = getattr(owner, name), 0

        def stopping(*given):
            nonlocal calls
            calls += 1
            if calls == call and not after:
                raise Stopped
            answer = whole(*given)
            if calls == call:
                raise Stopped
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, stopping)
            with pytest.raises(Stopped):
                run(tmp_path / "run")
        return tmp_path / "run"

    return stop


@pytest.mark.parametrize(
    ("owner", "name", "after", "call"),
    [
        *((Guessed, "result", False, call) for call in (1, 3)),
        *((Log, "append", after, call) for after in (False, True) for call in (1, 4)),
        *((Agent, "save", after, call) for after in (False, True) for call in (1, 3, 5)),
        (offline, "write_object", False, 1),
    ],
    ids=str,
)
def test_stopped_anywhere_else(done, owner, name, after, call, stopped_in):
    folder = stopped_in(owner, name, after, call)
    run(folder)
    assert same(done, folder)


@pytest.mark.parametrize(
    ("owner", "name", "after", "call"),
    [
        *((Guessed, "result", False, call) for call in (1, 2, 3, 5)),
        *((Log, "append", True, call) for call in (1, 2, 4)),
        *((Agent, "save", after, call) for after in (False, True) for call in (1, 2)),
    ],
    ids=str,
)
def test_stopped_with_several_evaluations_under_way(done, owner, name, after, call, stopped_in, monkeypatch):
    """Three are when the first checkpoint is due."""
    whole = offline._Training._save
    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(offline._Training, "_save", lambda own: whole(own) if own.agent.updates in (30, 45) else None)
    folder = stopped_in(owner, name, after, call)
    if (folder / "checkpoint.safetensors").exists():
        assert len(logged(folder)) >= 2
    run(folder)
    assert same(done, folder)


def test_a_kill_after_the_last_update_leaves_nothing_beside_the_clock(done, stopped_in):
    folder = stopped_in(Agent, "save", True, 5)
    with subprocess.Popen(["true"]) as killed:
        pass
    with replacing(folder / "clock.json") as beside:
        beside.write_bytes((folder / "clock.json").read_bytes())
    (folder / beside.name.replace(str(os.getpid()), str(killed.pid))).write_text("{")
    run(folder)
    assert same(done, folder)


def test_training_waits_for_players_only_when_they_are_far_behind(done, tmp_path, monkeypatch):
    begun, waited = [], []
    start, result = Guess.start, Guessed.result
    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(Guess, "start", lambda *given: (begun.append(given[2]), start(*given))[1])
    monkeypatch.setattr(Guessed, "result", lambda own: (waited.append((own.number, len(begun))), result(own))[1])
    run(tmp_path / "run", replace(PLAN, checkpoint_seconds=1e9))
    assert begun == [1, 2, 3, 4, 5]
    assert waited == [(1, MOST_UNDER_WAY), *((number, 5) for number in (2, 3, 4, 5))]
    assert same(done, tmp_path / "run")


@pytest.mark.parametrize(("slow", "known"), [(False, [10, 20, 30]), (True, [])])
def test_without_a_recent_checkpoint_it_goes_back_further(done, slow, known, tmp_path, monkeypatch):
    monkeypatch.setattr(Guess, "slow", slow)
    seldom = replace(PLAN, checkpoint_seconds=1e9)
    with pytest.raises(Stopped):
        run(tmp_path / "run", seldom, progress=StopAt(40))
    assert [line["updates"] for line in logged(tmp_path / "run")] == known
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    run(tmp_path / "run", seldom)
    assert same(done, tmp_path / "run")


KILLER = """
import os, random, signal, sys, time
from contextlib import contextmanager
from pathlib import Path
import torch, torch.utils.tensorboard
from synther import read
from synther.experiments import offline
from synther.agents.td3_bc import TD3BCConfig
from synther.experiments.offline import Plan, train_to
from synther.experiments.sources import Material

class Slow:
    @contextmanager
    def phase(self, name, total, start=0):
        yield self
    def advance(self, amount, note=""):
        time.sleep(0.05)

torch.set_num_threads(1)
offline._CHECKPOINT_SHARE = float("inf")
material, folder = Material(read(sys.argv[1])), Path(sys.argv[2])
plan = {plan}
kills = 0
while True:
    worker = os.fork()
    if not worker:
        train_to(plan, material, folder, progress=Slow())
        os._exit(0)
    time.sleep(random.uniform(0.02, 0.3 + 0.2 * kills))
    os.kill(worker, signal.SIGKILL)
    status = os.waitpid(worker, 0)[1]
    if os.WIFEXITED(status):
        print(kills, os.WEXITSTATUS(status))
        break
    kills += 1
"""


def test_killed_again_and_again_it_still_ends_with_the_same_files(tmp_path):
    plan = replace(PLAN, evaluate=False, updates=150, tensorboard="on")
    rows = swings(env_id=None)  # nothing to import first, in every life
    run(tmp_path / "done", plan, Material(rows))
    write(tmp_path / "real.npz", rows)
    script = KILLER.replace("{plan}", repr(plan))
    command = [sys.executable, "-c", script, str(tmp_path / "real.npz"), str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    kills, code = map(int, ended.stdout.split())
    assert kills >= 2
    assert code == 0, ended.stderr
    assert same(tmp_path / "done", tmp_path / "run")
    shown = events(tmp_path / "run")["actor/real/highest"]
    assert shown == [
        (line["updates"], pytest.approx(max(line["losses"]["actor"]))) for line in logged(tmp_path / "run")
    ]
