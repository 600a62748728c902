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
    """Only the options that all agents share."""


def imitation_loss(action: Tensor, data_action: Tensor) -> Tensor:
    """Mean squared error of the actions (S, B, A), per member. (S,)"""
    return (action - data_action).square().mean((1, 2))


class BC(Algorithm):
    config_class = BCConfig
    losses: ClassVar[tuple[str, ...]] = ("actor",)

    def __init__(self, config: BCConfig, shape: Shape) -> None:
        self.actor = shape.actor(config, shape.action)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        loss = imitation_loss(self.actor(batch.observation).tanh(), batch.action)
        self.actor_adam.minimise(loss)
        return {"actor": loss.detach()}
