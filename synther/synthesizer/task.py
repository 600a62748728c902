"""What a network is to be fitted on, and what is learned beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from synther.data import endings
from synther.data.kinds import Binary, Spiked
from synther.data.layout import Layout
from synther.data.preparing import Prepared
from synther.data.row_table import RowTable
from synther.data.transitions import Transitions
from synther.diffusion.networks import Network

T = TypeVar("T")


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
    usual_reward: Future[endings.UsualReward | None] | None = None
    """What is to decide which rows have the reward that comes again and again, likewise."""
    table: RowTable | None = None
    """What rows are to be drawn from instead of the network, where states and actions are few."""


def learn_ending(rows: Transitions) -> Future[endings.Tree | None]:
    """Begin to learn when episodes end, in a thread: it takes nothing but rows, and a GPU is busy with the network."""
    return _begun(partial(endings.learn, rows))


def learn_usual_reward(rows: Transitions, layout: Layout) -> Future[endings.UsualReward | None] | None:
    """Likewise begin to learn which rows have the reward that comes again and again, where there is one."""
    (kind,) = layout.reward
    if isinstance(kind, Spiked) and len(kind.spikes) == 1:
        return _begun(partial(endings.UsualReward.learn, rows, kind.spikes[0]))
    return _begun(partial(endings.UsualReward.learn, rows, kind.low)) if isinstance(kind, Binary) else None


def _begun(work: Callable[[], T]) -> Future[T]:
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(work)
    pool.shutdown(wait=False)  # the thread ends with its work
    return begun
