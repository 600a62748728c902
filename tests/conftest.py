"""What holds for every test: how property tests draw, one thread, nothing left to chance, no waiting for disks."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the processes that tests start; before anybody reads it
os.environ.setdefault("SYNTHER_COMMIT", "tested")  # which git takes a while to tell, for every run

import pytest
from hypothesis import settings

# Imported where they are used: the process that only hands out tests does not wait for them.
if TYPE_CHECKING:
    import torch
    from tyro._parsers import ParserSpecification

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory. Tests write thousands of small ones, which take seconds on a disk."""
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# What benchmarks/ holds is tested too. Last, so that its files hide no installed modules.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# Anew on every run of a developer, the same cases on every run of a CI server.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Matrices this small gain nothing from a second core, lose much where it is busy, and are summed in one order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def command_lines_are_read_quickly() -> Iterator[None]:
    """tyro builds its parser anew at every command, which is nine tenths of the time that it takes to read one."""
    from tyro._parsers import ParserSpecification

    whole, known = ParserSpecification.from_callable_or_type, {}

    def parser(options: Any, **how: Any) -> ParserSpecification:
        if how["parent_classes"]:  # a part of a parser
            return whole(options, **how)
        key = options, repr(how["default_instance"])
        if key not in known:
            known[key] = whole(options, **how)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParserSpecification, "from_callable_or_type", parser)
        patch.setattr(random, "random", lambda: 0.5)  # tyro checks one in ten cached answers under pytest
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_flushed() -> Iterator[None]:
    """Only a machine that loses its power could tell, and the many small files of tests would wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def logs_of_other_libraries_are_cleared_away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stable-Baselines3 would leave a folder for every agent among the temporary files of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


@pytest.fixture(autouse=True)
def no_command_has_set_the_level_of_messages() -> None:
    """Commands set it for their process, and here one process has many of them."""
    logging.getLogger("synther").setLevel(logging.NOTSET)


@pytest.fixture
def generator() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(0)


LONGEST = ("test_docs.py", "test_readme.py", "test_guides.py", "test_trackers.py")
"""Files that begin first, so that no worker of pytest-xdist waits for another at the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected. What they are made of stays to the end, and is never garbage.

    Later only every 50,000 objects instead of every 700, because each collection takes time.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    items.sort(key=lambda item: item.path.name not in LONGEST)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
