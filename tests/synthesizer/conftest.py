"""Models fitted once for all files, and rows drawn from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from synther import Synthesizer, Transitions

from .rows import made
from .settings import QUICK, TINY
from .watch import Watch


@contextmanager
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from a second core, and the order of sums stays the same everywhere.

    Fixtures of the session are made before this one, and see to it themselves.
    """
    with single_thread():
        yield


@pytest.fixture(scope="session")
def real() -> Transitions:
    return made()


@pytest.fixture(scope="session")
def watched_fit(real) -> tuple[Synthesizer, Watch]:
    watch = Watch()
    with single_thread():
        return Synthesizer("laptop", **TINY).fit(real, progress=watch), watch


@pytest.fixture(scope="session")
def model(watched_fit) -> Synthesizer:
    return watched_fit[0]


@pytest.fixture(scope="session")
def fake(model) -> Transitions:
    with single_thread():
        return model.sample(20_000, progress=False)


@pytest.fixture(scope="session")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model.save(path)
    return path


@pytest.fixture(scope="session")
def quick() -> Synthesizer:
    """Poor rows, but soon."""
    with single_thread():
        return Synthesizer("laptop", **QUICK).fit(made(300), progress=False)
