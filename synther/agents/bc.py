"""Behaviour cloning: a deterministic policy that imitates the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, StateAgentConfig
from synther.agents.rows import Batch


@dataclass(frozen=True)
class BCConfig(StateAgentConfig):
    """Options of behaviour cloning: only those that all agents share."""


def imitation_loss(action: Tensor, data_action: Tensor) -> Tensor:
    """Return the mean squared error per member (S,) of actions (S, B, A)."""
    return (action - data_action).square().mean((1, 2))


class BC(Algorithm):
    """Behaviour cloning with the squared error."""

    config_class = BCConfig
    losses: ClassVar[tuple[str, ...]] = ("actor",)

    def __init__(self, config: BCConfig, shape: Shape) -> None:
        self.actor = shape.actor(config, shape.action)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        loss = imitation_loss(self.actor(batch.observation).tanh(), batch.action)
        self.actor_adam.minimise(loss)
        return {"actor": loss.detach()}
