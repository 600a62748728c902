"""What an algorithm is: a config, networks with a member axis, and an update that is a function of tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from synther import compute
from synther.agents.adam import Adam
from synther.agents.rows import Batch
from synther.agents.stacked import Initial, Stack, draw_stack
from synther.errors import ConfigError
from synther.plain import make_plain

Squash = Literal["tanh", "clamp"]

WEIGHTS, ROUNDS = range(2)
"""Streams of a member's random numbers, so that no two purposes share one."""


@dataclass(frozen=True)
class AgentConfig:
    """What all algorithms let one choose."""

    width: int = 256
    """Columns of the hidden layers."""
    depth: int = 2
    """Hidden layers of every network."""
    batch_size: int = 256
    """Rows of an update."""
    learning_rate: float = 3e-4
    normalize: bool = True
    """Scale observations by the mean and deviation of the real data."""

    def __post_init__(self) -> None:
        make_plain(self, "agent")
        self._at_least(1, "width", "depth", "batch_size")
        self._positive("learning_rate")

    @property
    def hidden(self) -> tuple[int, ...]:
        return (self.width,) * self.depth

    def over(self, updates: int) -> Self:
        """The same for a training of so many updates, where that decides about anything."""
        return self

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise ConfigError(f"agent.{name} must be at least {least}, got {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"agent.{name} must be positive and finite, got {getattr(self, name)}")

    def _share(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"agent.{name} must lie in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class Shape:
    """What an algorithm's networks are made for."""

    observation: int
    action: int
    seeds: tuple[int, ...]
    """One a member."""
    device: torch.device

    def stack(
        self,
        key: int,
        sizes: Sequence[int],
        *,
        ensemble: int | None = None,
        initial: Initial | None = None,
        free: Sequence[float] = (),
    ) -> Stack:
        """A network for every member; its first weights are a function of (seed, key)."""
        sources = [compute.generator(torch.device("cpu"), seed, WEIGHTS, key) for seed in self.seeds]
        return draw_stack(sources, sizes, self.device, ensemble=ensemble, initial=initial, free=free)


class Noise(NamedTuple):
    """The random numbers of an update, beside those that picked its rows."""

    normal: Tensor
    """(S, B, normals)"""
    uniform: Tensor
    """(S, B, uniforms), within [-1, 1)"""


class Algorithm(ABC):
    """One file each. Whatever it keeps as a tensor, a `Stack` or an `Adam` is its state."""

    losses: ClassVar[tuple[str, ...]]
    """Names of what `update` returns."""
    squash: Squash = "tanh"
    """How the first outputs of the actor become an action."""
    normals: int = 0
    uniforms: int = 0
    """Random numbers that an update needs for each row of its batch."""
    period: int = 1
    """Updates after which their pattern repeats."""
    actor: Stack

    @abstractmethod
    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        """One update of all members, the `step`-th of a round that begins with a period; each member's losses (S,)."""

    def state(self) -> dict[str, Tensor]:
        """What changes from update to update, by the names that a file gives it."""
        state: dict[str, Tensor] = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor):
                state[name] = part
            elif isinstance(part, Stack):
                state[name] = part.weights.detach()
            elif isinstance(part, Adam):
                state |= {f"{name}.{key}": tensor for key, tensor in part.state().items()}
        return state
