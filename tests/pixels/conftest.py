from __future__ import annotations

from collections.abc import Iterator

import pytest

from .lamps import worlds_here


@pytest.fixture
def in_this_process() -> Iterator[None]:
    with worlds_here():
        yield
