"""A training that nothing has stopped, and ways to begin others like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from synther.experiments import offline, online, record
from synther.experiments.pixels import train_to

from .pendulum import Guess
from .seeing import PLAN, frames, play_here
from .trainings import run


@pytest.fixture
def saved_every_time(monkeypatch) -> None:
    """However long it takes, against the rest of so short a training."""
    monkeypatch.setattr(record, "_CHECKPOINT_SHARE", float("inf"))


@pytest.fixture
def playing(monkeypatch) -> None:
    """Evaluations of pixel agents in front of a wall, in this process."""
    play_here(monkeypatch)


@pytest.fixture
def quick(monkeypatch) -> None:
    """Evaluations that start no process."""
    for module in (offline, online):
        monkeypatch.setattr(module, "Evaluator", Guess)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(offline, "Evaluator", Guess)
        run(folder)
    return folder


@pytest.fixture
def done(finished, quick) -> Path:
    """A run that nothing has stopped, and others like it to be begun."""
    return finished


@pytest.fixture(scope="session", name="run")
def stage_one(tmp_path_factory) -> Path:
    """Pixel agents that were trained on frames, and nothing has stopped."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train_to(PLAN, frames(), str(folder), progress=False)
    return folder
