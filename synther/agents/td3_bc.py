"""TD3+BC (Fujimoto and Gu 2021): TD3 with a policy that also imitates the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import AgentConfig, Algorithm, Noise, Shape, TargetConfig
from synther.agents.critics import td_step, values
from synther.agents.networks import Initial
from synther.agents.rows import Batch


@dataclass(frozen=True)
class TD3BCConfig(TargetConfig):
    """Options of TD3+BC."""

    alpha: float = 2.5
    """Weight of the value relative to the imitation."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the next action in the critics' target."""
    noise_clip: float = 0.5
    """Bound of this noise."""
    policy_delay: int = 2
    """Critic updates per update of the policy and the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "alpha", "target_noise", "noise_clip")
        self._at_least(1, "policy_delay")


def policy_loss(value: Tensor, action: Tensor, data_action: Tensor, alpha: float) -> Tensor:
    """Return the mean of -lambda Q + (pi - a)^2 with lambda = alpha / mean|Q|, per member (S,).

    The values Q are (S, B). The policy's actions pi and the data's actions a are (S, B, A).
    """
    scale = alpha / value.detach().abs().mean(1)
    return -scale * value.mean(1) + (action - data_action).square().mean((1, 2))


class TD3BC(Algorithm):
    """TD3+BC, and the base class of TD3 and ReBRAC.

    They differ in the values of next actions, the loss of the policy and the initial weights.
    """

    config_class: ClassVar[type[AgentConfig]] = TD3BCConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")
    first_actor: ClassVar[Initial | None] = None
    first_critics: ClassVar[Initial | None] = None

    def __init__(self, config: Any, shape: Shape) -> None:
        self.config = config
        self.normals, self.period = shape.action, config.policy_delay
        self.actor = shape.actor(config, shape.action, initial=self.first_actor)
        self.critics = shape.critics(config, 2, initial=self.first_critics)
        self.target_actor, self.target_critics = self.actor.clone(), self.critics.clone()
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        delayed = (step + 1) % self.config.policy_delay == 0
        losses = {"critic": self._update_critics(batch, noise, self.config.tau if delayed else 0.0)}
        if delayed:
            losses["actor"] = self._update_actor(batch)
        return losses

    def _update_critics(self, batch: Batch, noise: Noise, tau: float) -> Tensor:
        c = self.config
        with torch.no_grad():
            disturbance = (c.target_noise * noise.normal).clamp(-c.noise_clip, c.noise_clip)
            next_action = (self.target_actor(batch.next_observation).tanh() + disturbance).clamp(-1, 1)
            reward = self._reward(batch, next_action)
            next_values = values(self.target_critics, batch.next_observation, next_action)
        follower = self.target_critics if tau else None
        batch = batch._replace(reward=reward)
        losses = td_step(self.critics, batch, next_values, c.discount, self.critics_adam, follower=follower, tau=tau)
        return losses.sum(1)

    def _update_actor(self, batch: Batch) -> Tensor:
        action = self.actor(batch.observation).tanh()
        loss = self._policy_loss(batch, action)
        self.actor_adam.minimise(loss, follower=self.target_actor, tau=self.config.tau)
        return loss.detach()

    def _reward(self, batch: Batch, next_action: Tensor) -> Tensor:
        """Return the rewards (S, B) of the critics' targets, for the policy's next actions (S, B, A)."""
        return batch.reward

    def _policy_loss(self, batch: Batch, action: Tensor) -> Tensor:
        """Return the loss (S,) of the policy's actions (S, B, A)."""
        value = values(self.critics.one(0), batch.observation, action)
        return policy_loss(value, action, batch.action, self.config.alpha)
