"""An online run that is stopped anywhere and taken up again ends as one that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synther.agents.learner import Learner
from synther.data import formats
from synther.envs.stepping import Worlds
from synther.experiments.measurements import Log
from synther.experiments.online import refreshing, training
from synther.experiments.online.experience import Experience
from synther.experiments.online.refreshing import Refreshing
from synther.synthesizer import Synthesizer

from ..pendulum import Guessed
from .runs import PLAN, Guess, refreshes, run, same

pytestmark = pytest.mark.usefixtures("quick")


class Stopped(BaseException):
    """Nobody catches it, as nobody catches a kill."""


@pytest.fixture
def stopped_in(tmp_path, monkeypatch):
    """A run that was brought down before or after one of its calls."""

    def stop(owner, name: str, after: bool, call: int, plan=PLAN) -> Path:
        whole, calls = getattr(owner, name), 0

        def stopping(*given, **named):
            nonlocal calls
            calls += 1
            if calls == call and not after:
                raise Stopped
            answer = whole(*given, **named)
            if calls == call:
                raise Stopped
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, stopping)
            with pytest.raises(Stopped):
                run(tmp_path / "run", plan)
        assert not (tmp_path / "run" / "result.json").exists()
        return tmp_path / "run"

    return stop


@pytest.mark.parametrize(
    ("owner", "name", "after", "call"),
    [
        *((Worlds, "step", False, call) for call in (8, 44)),  # acting
        (Learner, "train", True, 20),  # training
        *((refreshing, "fit_models", after, call) for after, call in ((False, 1), (True, 2))),  # fitting
        *((Synthesizer, "sample_blocks", False, call) for call in (2, 4)),  # sampling
        *((Synthesizer, "save", True, call) for call in (1, 2, 3)),  # saving
        (Experience, "save", True, 3),
        *((Learner, "save", after, call) for after, call in ((True, 4), (True, 6))),
        (Refreshing, "_tidy", True, 2),
        (Guessed, "result", False, 2),
        (Log, "append", True, 4),
        (formats, "write", True, 1),
        (training, "write_object", False, 1),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_stopped(finished, owner, name, after, call, stopped_in):
    folder = stopped_in(owner, name, after, call)
    run(folder)
    assert same(finished, folder)
    assert refreshes(finished) == refreshes(folder)


def test_stopped_again_and_again_while_evaluations_are_slow(finished, stopped_in, monkeypatch):
    monkeypatch.setattr(Guess, "slow", True)
    for call in (17, 18, 12, 3):
        folder = stopped_in(Worlds, "step", True, call)
    run(folder)
    assert same(finished, folder)


def test_stopped_after_the_buffer_has_wrapped_around(stopped_in, tmp_path):
    plan = replace(PLAN, capacity=18)
    run(tmp_path / "whole", plan)
    folder = stopped_in(Worlds, "step", False, 44, plan)
    run(folder, plan)
    assert same(tmp_path / "whole", folder)
