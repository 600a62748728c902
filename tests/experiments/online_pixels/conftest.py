from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from synther.pixels import evaluation, vector_env

from ...support.processes import Here
from .runs import run


@contextmanager
def one_process() -> Iterator[None]:
    """Worlds and episodes that start no others."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (vector_env, evaluation):
            patched.setattr(module, "Workers", Here)
            module._held.cache_clear()
        yield
        for module in (vector_env, evaluation):
            module._held.cache_clear()


@pytest.fixture(autouse=True)
def in_this_process() -> Iterator[None]:
    with one_process():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with one_process():
        run(folder)
    return folder
