"""How the work is spread over cores: whole tasks side by side, each on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKERS = 2
"""Tasks of an assessment that run at a time."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread. Products of small or of tall and narrow matrices are many times slower on several, which
    wait for each other at every product, and on one they are summed in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
