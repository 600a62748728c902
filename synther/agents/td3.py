"""TD3 (Fujimoto et al. 2018), online: two critics, a delayed deterministic policy, and noise on its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.rows import Batch


@dataclass(frozen=True)
class TD3Config(OnlineConfig):
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions, for actions in [-1, 1]."""
    target_noise: float = 0.2
    noise_clip: float = 0.5
    policy_delay: int = 2
    """Critic updates per update of the policy and the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "exploration_noise", "target_noise", "noise_clip")
        self._at_least(1, "policy_delay")


class TD3(Algorithm):
    config_class = TD3Config
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")

    def __init__(self, config: TD3Config, shape: Shape) -> None:
        self.config = config
        self.normals, self.exploration_noise = shape.action, config.exploration_noise
        self.period = config.policy_delay
        self.actor = shape.actor(config, shape.action)
        self.critics = shape.critics(config, 2)
        self.target_actor, self.target_critics = self.actor.clone(), self.critics.clone()
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        c = self.config
        delayed = (step + 1) % c.policy_delay == 0
        with torch.no_grad():
            disturbance = (c.target_noise * noise.normal).clamp(-c.noise_clip, c.noise_clip)
            next_action = (self.target_actor(batch.next_observation).tanh() + disturbance).clamp(-1, 1)
            next_value = min_over_critics(values(self.target_critics, batch.next_observation, next_action))
            target = backup(batch, next_value, c.discount)
        critic_loss = squared_errors(self.critics(batch.pair).squeeze(-1), target).sum(1)
        self.critics_adam.minimise(critic_loss, follower=self.target_critics if delayed else None, tau=c.tau)
        if not delayed:
            return {"critic": critic_loss.detach()}
        action = self.actor(batch.observation).tanh()
        actor_loss = -values(self.critics.one(0), batch.observation, action).mean(1)
        self.actor_adam.minimise(actor_loss, follower=self.target_actor, tau=c.tau)
        return {"critic": critic_loss.detach(), "actor": actor_loss.detach()}
