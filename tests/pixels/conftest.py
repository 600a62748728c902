from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .lamps import worlds_here


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def in_this_process() -> Iterator[None]:
    with worlds_here():
        yield
