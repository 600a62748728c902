"""The interface of an algorithm: a config, networks with a member axis, and an update as a function of tensors."""

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
"""Random streams of a member, one per purpose."""


@dataclass(frozen=True)
class AgentConfig:
    """Options that all algorithms share."""

    width: int = 256
    """Width of the hidden layers."""
    depth: int = 2
    """Number of hidden layers."""
    batch_size: int = 256
    """Rows per update."""
    learning_rate: float = 3e-4
    normalize: bool = True
    """Normalize observations by the mean and standard deviation of the real data."""

    def __post_init__(self) -> None:
        make_plain(self, "agent")
        self._at_least(1, "width", "depth", "batch_size")
        self._positive("learning_rate")

    @property
    def hidden(self) -> tuple[int, ...]:
        return (self.width,) * self.depth

    def over(self, updates: int) -> Self:
        """The config for a training of `updates` updates, if it depends on that number."""
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
    """Sizes, seeds and device of an algorithm's networks."""

    observation: int
    action: int
    seeds: tuple[int, ...]
    """One seed per member."""
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
        """One network per member. The initial weights are drawn from (seed, key)."""
        sources = [compute.generator(torch.device("cpu"), seed, WEIGHTS, key) for seed in self.seeds]
        return draw_stack(sources, sizes, self.device, ensemble=ensemble, initial=initial, free=free)


class Noise(NamedTuple):
    """Random numbers of an update, apart from those that select its rows."""

    normal: Tensor
    """(S, B, normals)"""
    uniform: Tensor
    """(S, B, uniforms), within [-1, 1)"""


class Algorithm(ABC):
    """Base class of algorithms. Attributes of type Tensor, `Stack` and `Adam` are its state."""

    losses: ClassVar[tuple[str, ...]]
    """Names of the losses that `update` returns."""
    squash: Squash = "tanh"
    """How the actor's first outputs become an action."""
    normals: int = 0
    uniforms: int = 0
    """Random numbers per row of a batch."""
    period: int = 1
    """Number of updates after which their pattern repeats."""
    actor: Stack

    @abstractmethod
    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        """One update of all members; return each member's losses (S,). `step` counts from the start of a period."""

    def state(self) -> dict[str, Tensor]:
        """All tensors that change during training, by their names in files."""
        state: dict[str, Tensor] = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor):
                state[name] = part
            elif isinstance(part, Stack):
                state[name] = part.weights.detach()
            elif isinstance(part, Adam):
                state |= {f"{name}.{key}": tensor for key, tensor in part.state().items()}
        return state
