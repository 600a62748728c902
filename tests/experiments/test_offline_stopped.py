"""Offline training that is stopped anywhere and taken up again ends as one that was not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synther.agents.agent import Agent
from synther.experiments import loop
from synther.experiments.loop import MOST_UNDER_WAY
from synther.experiments.record import Checkpoints
from synther.experiments.results import Log
from synther.folder import RunFolder

from ..support.watch import Stopped, Watch
from .pendulum import Guess, Guessed
from .stopping import stop, stop_at_each
from .trainings import PLAN, TIMES, logged, run, same

pytestmark = pytest.mark.usefixtures("saved_every_time")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("places", "kept", "kept_slow"), [([8, 28], 24, 20), ([18, 45], 44, 40)], ids=str)
def test_stopped_between_measurements(done, places, kept, kept_slow, slow, tmp_path, monkeypatch):
    """A checkpoint there waits until evaluations are over, or for the next measurement."""
    monkeypatch.setitem(loop.SHOWN_UPDATES, "cpu", 4)
    monkeypatch.setattr(Guess, "slow", slow)
    for place in places:
        with pytest.raises(Stopped):
            run(tmp_path / "run", progress=Watch(("train", place)))
    rest = Watch()
    run(tmp_path / "run", progress=rest)
    assert (rest.start, rest.done) == (kept_slow if slow else kept, 45)
    assert same(done, tmp_path / "run")


SAVED = (Agent, "save", True, 1)
STOPS = [
    (Guessed, "result", False, 1),  # a checkpoint is there, and nothing in the log
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (Agent, "save", False, 1),
    SAVED,
    (Guessed, "result", False, 2),
    SAVED,
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (Agent, "save", False, 1),
    SAVED,  # the last update
    (Log, "append", False, 1),
    (Log, "append", True, 1),
    (RunFolder, "finish", False, 1),  # all is done but the result
]
"""Whose call, by number, a run is stopped before or after, in the order of time."""


def test_stopped_again_and_again(done, tmp_path):
    assert list(stop_at_each(STOPS, run, tmp_path)) == STOPS
    run(tmp_path)
    assert same(done, tmp_path)


def test_stopped_with_several_evaluations_under_way(done, tmp_path, monkeypatch):
    """Three are when the first checkpoint is due."""
    trained, train = [0], Agent.train

    def counted(agent: Agent, updates: int) -> None:
        train(agent, updates)
        trained[0] = agent.updates

    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(Agent, "train", counted)
    monkeypatch.setattr(Checkpoints, "are_due", lambda own: trained[0] == 30)
    known = []
    for place in (
        (Guessed, "result", False, 1),
        (Guessed, "result", False, 2),
        (Log, "append", True, 1),
        (Log, "append", True, 2),
        (Agent, "save", False, 1),
        SAVED,
        (Guessed, "result", False, 1),
        (Log, "append", True, 1),
        (Agent, "save", False, 1),
        SAVED,
        (Guessed, "result", False, 1),
        (Log, "append", True, 1),
    ):
        stop(lambda: run(tmp_path), *place)
        known.append(((tmp_path / "checkpoint.safetensors").exists(), len(logged(tmp_path))))
    assert known == [(False, lines) for lines in (0, 1, 1, 2, 2)] + [(True, lines) for lines in (2, 2, 3, 4, 4, 4, 5)]
    run(tmp_path)
    assert same(done, tmp_path)


def test_training_waits_for_players_only_when_they_are_far_behind(done, tmp_path, monkeypatch):
    begun, waited = [], []
    start, result = Guess.start, Guessed.result
    monkeypatch.setattr(Guess, "slow", True)
    monkeypatch.setattr(Guess, "start", lambda *given: (begun.append(given[2]), start(*given))[1])
    monkeypatch.setattr(Guessed, "result", lambda own: (waited.append((own.number, len(begun))), result(own))[1])
    run(tmp_path / "run", replace(PLAN, checkpoint_seconds=1e9))
    assert begun == TIMES
    assert waited == [(TIMES[0], MOST_UNDER_WAY), *((number, 5) for number in TIMES[1:])]
    assert same(done, tmp_path / "run")


@pytest.mark.parametrize(("slow", "known"), [(False, [10, 20, 30]), (True, [])])
def test_without_a_recent_checkpoint_it_goes_back_further(done, slow, known, tmp_path, monkeypatch):
    monkeypatch.setattr(Guess, "slow", slow)
    seldom = replace(PLAN, checkpoint_seconds=1e9)
    with pytest.raises(Stopped):
        run(tmp_path / "run", seldom, progress=Watch(("train", 40)))
    assert [line["updates"] for line in logged(tmp_path / "run")] == known
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    run(tmp_path / "run", seldom)
    assert same(done, tmp_path / "run")
