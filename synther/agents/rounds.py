"""Training in rounds of updates. On a GPU, a whole round is captured as one CUDA graph.

All random numbers of a round depend only on (member's seed, round number). So a member trains the same alone as
together with others. A training run that is resumed at any update ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.agents.algorithm import ROUNDS, Algorithm
from synther.errors import ConfigError, FormatError


class Round(Protocol):
    """Consecutive updates. Their random numbers are in tensors with fixed addresses, for a captured graph."""

    updates: int
    """Number of updates in a round."""
    losses: dict[str, Tensor]
    """Each member's losses (S,), in the latest update that computed them."""

    def fill(self, number: int) -> None:
        """Draw the random numbers of round `number`."""

    def run(self, first: int, last: int) -> None:
        """Run the updates from `first` up to, but not including, `last`."""


class Rounds(ABC):
    """Base class of agents that train all members of an algorithm at once."""

    def __init__(self, algorithm: Algorithm, one: Round, device: torch.device) -> None:
        self.algorithm, self.device, self.updates = algorithm, device, 0
        self._round = one
        self._captured: Callable[[], None] | None = None

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """Return the properties that must match when training resumes from a file, as JSON values."""

    @abstractmethod
    def _working(self) -> AbstractContextManager[None]:
        """Return the context in which updates run. It sets device and precision."""

    def train(self, updates: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Run `updates` updates of every member. On a GPU, they may still be running when this method returns.

        Run fewer updates if `stopped` returns True. It is called after each update, or after a round that is captured.
        """
        if updates < 0:
            raise ConfigError(f"the number of updates must be at least 0, got {updates}")
        with self._working():
            end = self.updates + updates
            while self.updates < end:
                number, first = divmod(self.updates, self._round.updates)
                last = min(self._round.updates, first + end - self.updates)
                self._round.fill(number)
                is_captured = self.device.type == "cuda" and last - first == self._round.updates
                for start, stop in [(first, last)] if is_captured else pairwise(range(first, last + 1)):
                    if is_captured:
                        self._whole_round()
                    else:
                        self._round.run(start, stop)
                    self.updates += stop - start
                    if stopped():
                        return

    def losses(self) -> dict[str, NDArray[np.float32]]:
        """Return each member's losses (S,) in the latest update that computed them. This waits for the device."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._round.losses.items()}

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that change during training (not copies)."""
        return self.algorithm.state() | {f"losses.{name}": tensor for name, tensor in self._round.losses.items()}

    def load_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Resume from a `state` after `updates` updates."""
        copy_state(self.state(), state, "this state")
        self.updates = updates

    def _go_on(
        self,
        path: str | os.PathLike[str],
        found: Mapping[str, Any],
        tensors: dict[str, Tensor],
        fixed: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Resume from the description `found` and the tensors of a file, if the description matches `_described`.

        `fixed` are tensors of this agent that must be the same in the file, by the word for them in an error message.
        """
        others = []
        for word, parts in fixed.items():
            same = [torch.equal(tensors.pop(name, torch.empty(0)), own.cpu()) for name, own in parts.items()]
            others += [] if all(same) else [word]
        check_described(path, found, self._described(), "updates", others=others)
        copy_state(self.state(), tensors, path)
        self.updates = found["updates"]

    def _whole_round(self) -> None:
        """Run all updates of a round, which are captured the first time."""
        if self._captured is None:
            whole = partial(self._round.run, 0, self._round.updates)
            self._captured = compute.capture(whole, self.device, list(self.state().values()))
        self._captured()


def check_described(
    path: str | os.PathLike[str],
    found: Mapping[str, Any],
    own: Mapping[str, Any],
    *counts: str,
    others: Sequence[str] = (),
) -> None:
    """Raise an error if the description `found` in an agent file differs from an agent's `own`, or lacks a count.

    `others` are the names of other differences, which the caller has noticed.
    """
    # Both are converted to JSON values, with lists instead of tuples. Older files do not have n_step.
    own, found = (json.loads(json.dumps(one)) for one in (own, {"n_step": 1, **found}))
    different = [*(name for name in own if own[name] != found.get(name)), *others]
    if different:
        raise ConfigError(f"{path} belongs to an agent with another {', '.join(different)}: choose another folder")
    for name in counts:
        if name not in found:
            raise FormatError(f"{path} is a damaged agent file, because {name!r} is missing: use another folder")


@torch.no_grad()
def copy_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str | os.PathLike[str]) -> None:
    """Copy the tensors of `state`, which comes from `where`, into an agent's own tensors of the same names."""
    if {name: tensor.shape for name, tensor in own.items()} != {name: state[name].shape for name in state}:
        raise ConfigError(
            f"{where} belongs to an agent with other options, members or data: load it with the same ones"
        )
    for name, tensor in own.items():
        tensor.copy_(state[name])


_RANDOM_BITS = 62  # bits of the integers that select a row by their remainder mod N: the bias is N / 2^62


class RandomNumbers:
    """The random numbers of a round, in tensors with fixed addresses.

    `random` (S, updates, B) selects rows. `normal` and `uniform` are the noise that the algorithm needs.
    """

    def __init__(
        self, seeds: Sequence[int], updates: int, batch: int, algorithm: Algorithm, device: torch.device
    ) -> None:
        self.seeds, size = tuple(seeds), (len(seeds), updates, batch)
        self.random = torch.zeros(size, dtype=torch.int64, device=device)
        self.normal = torch.zeros(*size, algorithm.normals, device=device)
        self.uniform = torch.zeros(*size, algorithm.uniforms, device=device)
        self._source = torch.Generator(device)

    def draw(self, number: int) -> None:
        """Draw the numbers of round `number`. Each member gets the same numbers as if it was the only member."""
        for index, seed in enumerate(self.seeds):
            compute.reseed(self._source, seed, ROUNDS, number)
            self.random[index].random_(0, 1 << _RANDOM_BITS, generator=self._source)
            self.normal[index].normal_(generator=self._source)
            self.uniform[index].uniform_(-1, 1, generator=self._source)


def precision_for(precision: Literal["auto", "float32", "tf32"], device: torch.device) -> compute.Precision:
    """Resolve `auto`: tf32 on a GPU, float32 on a CPU."""
    if precision not in ("auto", "float32", "tf32"):
        raise ConfigError(f"precision must be auto, float32 or tf32, got {precision!r}")
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return precision
