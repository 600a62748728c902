"""An offline agent of your own: AWAC (Nair et al. 2020), advantage-weighted imitation with learned critics.

Train it from the folder of this file:

    synther train awac:AWAC hopper-sac --out awac-run --updates 20K --agent.temperature 0.3
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, TargetConfig
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.gaussian import log_probability
from synther.agents.rows import Batch


@dataclass(frozen=True)
class AWACConfig(TargetConfig):
    """The options of AWAC. On the command line they are `--agent.discount` and so on."""

    depth: int = 3
    temperature: float = 1 / 3
    """The higher, the less the agent prefers better actions."""


class AWAC(Algorithm):
    config_class = AWACConfig
    losses = ("critic", "actor")
    squash = "clamp"  # the actor's output is already an action, only its bounds are enforced

    def __init__(self, config: AWACConfig, shape: Shape) -> None:
        self.config, self.normals = config, 2 * shape.action  # normals: random numbers for each row
        self.actor = shape.actor(config, shape.action, free=(0.0,) * shape.action)  # free parameters: the log std
        self.critics = shape.critics(config, 2)
        self.target_critics = self.critics.clone()
        self.actor_adam = Adam(self.actor.weights, config.learning_rate)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        """Update the agents of all members (seeds). The first axis of tensors is the member, losses are (members,)."""
        here, there = noise.normal.chunk(2, -1)
        with torch.no_grad():
            next_value = self._value(self.target_critics, batch.next_observation, there)
            advantage = min_over_critics(values(self.critics, batch.observation, batch.action))
            advantage = advantage - self._value(self.critics, batch.observation, here)
            weight = (advantage / self.config.temperature).exp().clamp(max=100)
        mean, log_std = self._policy(batch.observation)
        actor_loss = -(weight * log_probability(batch.action, mean, log_std)).mean(1)
        self.actor_adam.minimise(actor_loss)

        target = backup(batch, next_value, self.config.discount)
        critic_loss = squared_errors(self.critics(batch.pair).squeeze(-1), target).sum(1)
        self.critics_adam.minimise(critic_loss, follower=self.target_critics, tau=self.config.tau)
        return {"critic": critic_loss.detach(), "actor": actor_loss.detach()}

    def _policy(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observation), self.actor.free.clamp(-20, 2).unsqueeze(1)

    def _value(self, critics: object, observation: Tensor, noise: Tensor) -> Tensor:
        """Return the lowest value over the critics of one sampled action, (members, rows)."""
        mean, log_std = self._policy(observation)
        action = (mean + log_std.exp() * noise).clamp(-1, 1)
        return min_over_critics(values(critics, observation, action))
