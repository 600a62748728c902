from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from synther.envs import vector_env
from synther.experiments import online as training

from ...envs.places import register
from ..pendulum import Guess
from .runs import run


@pytest.fixture(scope="session", autouse=True)
def environments() -> Iterator[None]:
    """Those of tests, in this process, the only one that knows them."""
    register()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vector_env, "cores", lambda: 1)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "Evaluator", Guess)
        run(folder)
    return folder
