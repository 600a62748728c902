"""An online run that is stopped anywhere and taken up again ends as one that was not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synther.agents.learner import Learner
from synther.data import formats
from synther.envs.vector_env import VectorEnv
from synther.experiments.experience import Experience
from synther.experiments.refresh import Generators
from synther.experiments.results import Log
from synther.folder import RunFolder
from synther.replay import refit as refitting
from synther.synthesizer import Synthesizer

from ..pendulum import Guess, Guessed
from ..stopping import stop, stop_at_each
from .runs import PLAN, run, same

pytestmark = pytest.mark.usefixtures("quick")


STOPS = [
    (VectorEnv, "step", False, 8),  # before there is a checkpoint
    (Learner, "train", True, 5),  # after the first one
    (refitting, "fit_models", False, 1),
    (Synthesizer, "save", True, 1),  # one of two generators is kept,
    (Synthesizer, "save", True, 2),  # both are,
    (Synthesizer, "sample_blocks", False, 2),  # and the rows of one are drawn
    (Experience, "save", True, 1),  # rows are there, and no checkpoint
    (Guessed, "result", False, 1),
    (Log, "append", True, 1),
    (Learner, "save", True, 1),  # of a leg that no refresh follows
    (Learner, "save", True, 1),  # a refresh is due
    (refitting, "fit_models", True, 1),  # generators were fitted from those before, and not kept
    (Synthesizer, "save", True, 1),
    (Synthesizer, "sample_blocks", False, 2),
    (Generators, "tidy", True, 1),
    (VectorEnv, "step", False, 4),
    (Learner, "save", True, 1),
    (Learner, "save", True, 1),  # the last step
    (formats, "write", True, 1),
    (RunFolder, "finish", False, 1),  # all is done but the result
]
"""Whose call, by number, a run is stopped before or after, in the order of time."""


def test_stopped_again_and_again(finished, tmp_path):
    reached = []
    for _ in stop_at_each(STOPS, run, tmp_path):
        reached.append(max((int(file.stem) for file in (tmp_path / "experience").glob("0*")), default=0))
    assert reached == [0, 15, *[20] * 4, *[30] * 4, *[40] * 6, 45, *[55] * 3]
    run(tmp_path)
    assert same(finished, tmp_path)


def test_stopped_again_and_again_while_evaluations_are_slow(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(Guess, "slow", True)
    for call in (17, 18, 12, 3):
        stop(lambda: run(tmp_path), VectorEnv, "step", True, call)
    run(tmp_path)
    assert same(finished, tmp_path)


def test_stopped_after_the_buffer_has_wrapped_around(tmp_path):
    plan = replace(PLAN, capacity=18)
    run(tmp_path / "whole", plan)
    stop(lambda: run(tmp_path / "run", plan), VectorEnv, "step", False, 44)
    run(tmp_path / "run", plan)
    assert same(tmp_path / "whole", tmp_path / "run")
