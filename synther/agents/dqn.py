"""Double DQN (van Hasselt et al. 2016) for discrete actions, online. The target network moves a little per update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape
from synther.agents.critics import backup
from synther.agents.rows import Batch
from synther.errors import ConfigError


@dataclass(frozen=True)
class DQNConfig(OnlineConfig):
    """Options of DQN."""

    epsilon: float = 0.1
    """Probability of a random action in exploration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon < 0.5:
            raise ConfigError(f"agent.epsilon must lie in [0, 0.5), got {self.epsilon}")


class DQN(Algorithm):
    """Double DQN. Its actor is the network of the values of all actions."""

    config_class = DQNConfig
    losses: ClassVar[tuple[str, ...]] = ("critic",)
    discrete = True
    squash = "argmax"

    def __init__(self, config: DQNConfig, shape: Shape) -> None:
        assert shape.choices is not None
        self.config, self.choices = config, shape.choices
        self.actor = shape.actor(config, shape.choices)  # the values of all actions
        self.target = self.actor.clone()
        self.adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            best = self.actor(batch.next_observation).argmax(-1, keepdim=True)
            next_value = self.target(batch.next_observation).gather(-1, best).squeeze(-1)
            target = backup(batch, next_value, self.config.discount)
        # Actions are stored as the numbers 0 to choices - 1, scaled to [-1, 1].
        taken = ((batch.action + 1) * (0.5 * (self.choices - 1))).round().long()
        predicted = self.actor(batch.observation).gather(-1, taken).squeeze(-1)
        loss = functional.smooth_l1_loss(predicted, target, reduction="none").mean(1)
        self.adam.minimise(loss, follower=self.target, tau=self.config.tau)
        return {"critic": loss.detach()}

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        best = self.actor(observation, training=False).argmax(-1, keepdim=True)
        # Convert a standard normal number to a uniform one in [0, 1]. Below epsilon, it selects a random action.
        uniform = 0.5 * (1 + torch.erf(noise / math.sqrt(2)))
        drawn = (uniform * (self.choices / max(self.config.epsilon, 1e-9))).floor().clamp(max=self.choices - 1)
        chosen = torch.where(uniform < self.config.epsilon, drawn, best.to(drawn.dtype))
        return 2 * chosen / (self.choices - 1) - 1
