"""What a network is to be fitted on, and what is learned beside it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from synther.data import endings
from synther.data.preparing import Prepared
from synther.data.transitions import Transitions
from synther.diffusion.networks import Network


@dataclass(frozen=True)
class Task:
    """What a network is to be fitted on, and from."""

    rows: Transitions
    prepared: Prepared
    matrix: torch.Tensor
    """The prepared rows where the fit takes place."""
    start: Network | None
    held_out: torch.Tensor | None
    ending: Future[endings.Tree | None] | None
    """What is to decide about terminals, where that was asked for."""


def learn_ending(rows: Transitions) -> Future[endings.Tree | None]:
    """Begin to learn when episodes end, in a thread: it takes nothing but rows, and a GPU is busy with the network."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(endings.learn, rows)
    pool.shutdown(wait=False)  # the thread ends with its work
    return begun
