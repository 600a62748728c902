"""Training in rounds of updates, which a GPU has captured as one, from wherever the training stands.

Everything random in a round is a function of (a member's seed, round number). So members train together as they would
alone, and a training that was stopped anywhere and taken up again ends with the weights of one that was not.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.agents.algorithm import ROUNDS, Algorithm
from synther.errors import ConfigError, FormatError


class Round(Protocol):
    """Consecutive updates, their random numbers in tensors that stay where they are."""

    updates: int
    losses: dict[str, Tensor]
    """Each member's (S,), in the latest update that had them."""

    def fill(self, number: int) -> None:
        """Draw round `number`."""

    def run(self, first: int, last: int) -> None:
        """The updates from `first` up to `last`, without it."""


class Rounds(ABC):
    """What trains all members of an algorithm at once."""

    def __init__(self, algorithm: Algorithm, one: Round, device: torch.device) -> None:
        self.algorithm, self.device, self.updates = algorithm, device, 0
        self._round = one
        self._captured: Callable[[], None] | None = None

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """What an agent must have in common with one that goes on from its file, for JSON."""

    @abstractmethod
    def _working(self) -> AbstractContextManager[None]:
        """In which updates are made: on the device, in the precision that was asked for."""

    def train(self, updates: int) -> None:
        """So many updates of every member. On a GPU they may still be running when this returns."""
        if updates < 0:
            raise ConfigError(f"the number of updates must be at least 0, got {updates}")
        with self._working():
            end = self.updates + updates
            while self.updates < end:
                number, first = divmod(self.updates, self._round.updates)
                last = min(self._round.updates, first + end - self.updates)
                self._round.fill(number)
                if last - first == self._round.updates:
                    self._whole_round()
                else:
                    self._round.run(first, last)
                self.updates += last - first

    def losses(self) -> dict[str, NDArray[np.float32]]:
        """Each member's losses (S,) in the latest update that had them. Waits for the device."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._round.losses.items()}

    def state(self) -> dict[str, Tensor]:
        """What changes from update to update, beside their number. The tensors are those that are trained."""
        return self.algorithm.state() | {f"losses.{name}": tensor for name, tensor in self._round.losses.items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from a `state` after so many `updates`."""
        own = self.state()
        if {name: tensor.shape for name, tensor in own.items()} != {name: state[name].shape for name in state}:
            raise ConfigError("this state belongs to an agent with other options, members or data")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.updates = updates

    def _go_on(
        self, path: str | os.PathLike[str], found: Mapping[str, Any], tensors: dict[str, Tensor], others: Sequence[str]
    ) -> None:
        """From a file's description and tensors, unless it says other things of its agent than `_described` does.

        `others` are what differs beside.
        """
        own = json.loads(json.dumps(self._described()))
        other = [*(name for name in own if own[name] != found.get(name)), *others]
        if other:
            raise ConfigError(f"{path} belongs to an agent with another {', '.join(other)}: choose another place")
        if not isinstance(found.get("updates"), int):
            raise FormatError(f"{path} is a damaged agent: it does not say how many updates it has seen")
        self.load_state(tensors, found["updates"])

    def _whole_round(self) -> None:
        if self._captured is None:
            whole = partial(self._round.run, 0, self._round.updates)
            self._captured = compute.capture(whole, self.device, list(self.state().values()))
        self._captured()


_RANDOM_BITS = 62  # of a number that picks a row by its remainder: the bias is one row in 2^62 / N


class RandomNumbers:
    """In tensors that stay where they are: `random` (S, updates, B) picks rows, the others are an algorithm's noise."""

    def __init__(
        self, seeds: Sequence[int], updates: int, batch: int, algorithm: Algorithm, device: torch.device
    ) -> None:
        self.seeds, size = tuple(seeds), (len(seeds), updates, batch)
        self.random = torch.zeros(size, dtype=torch.int64, device=device)
        self.normal = torch.zeros(*size, algorithm.normals, device=device)
        self.uniform = torch.zeros(*size, algorithm.uniforms, device=device)
        self._source = torch.Generator(device)

    def draw(self, number: int) -> None:
        """Round `number`: for each member the same numbers as if it were the only one."""
        for index, seed in enumerate(self.seeds):
            compute.reseed(self._source, seed, ROUNDS, number)
            self.random[index].random_(0, 1 << _RANDOM_BITS, generator=self._source)
            self.normal[index].normal_(generator=self._source)
            self.uniform[index].uniform_(-1, 1, generator=self._source)


def precision_for(asked: Literal["auto", "float32", "tf32"], device: torch.device) -> compute.Precision:
    """`auto` is tf32 on a GPU and float32 on a CPU; agents have no use for bf16."""
    if asked not in ("auto", "float32", "tf32"):
        raise ConfigError(f"precision must be auto, float32 or tf32, got {asked!r}")
    if asked == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return asked
