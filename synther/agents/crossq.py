"""CrossQ (Bhatt et al. 2024): SAC with batch norm and without target networks.

The pairs (s, a) and (s', a') go through the critics in one pass, so that batch norm normalizes their mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape
from synther.agents.critics import backup, min_over_critics, squared_errors
from synther.agents.gaussian import squashed
from synther.agents.rows import Batch
from synther.agents.sac import LOG_STD

_BETAS = (0.5, 0.999)  # Adam's decays


@dataclass(frozen=True)
class CrossQConfig(OnlineConfig):
    """Options of CrossQ."""

    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    tau: float = field(default=1.0, init=False)  # CrossQ has no target networks
    actor_network: str = field(default="batch_norm", kw_only=True)
    """Network of the policy: mlp, layer_norm, layer_norm_last, batch_norm, simba, or your own as module:function."""
    critic_network: str = field(default="batch_norm", kw_only=True)
    """Network of the critics, with the same choices as actor_network."""
    critic_width: int | None = field(default=2048, kw_only=True)
    """Width of the critics' hidden layers."""
    policy_delay: int = 3
    """Critic updates per update of the policy and the temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "policy_delay")


class CrossQ(Algorithm):
    """CrossQ with two critics."""

    config_class = CrossQConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor", "temperature", "entropy")

    def __init__(self, config: CrossQConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.normals, self.period = 2 * shape.action, config.policy_delay
        self.actor = shape.actor(config, 2 * shape.action)
        self.critics = shape.critics(config, 2)
        self.log_temperature = torch.zeros(len(shape.seeds), device=shape.device)
        rate, decay = config.learning_rate, config.weight_decay
        self.actor_adam = Adam(self.actor.weights, rate, decay=decay, betas=_BETAS)
        self.critics_adam = Adam(self.critics.weights, rate, decay=decay, betas=_BETAS)
        self.temperature_adam = Adam(self.log_temperature, rate)

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self._act(observation, noise, training=False)[0]

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        policy_noise, next_noise = noise.normal.chunk(2, -1)
        temperature = self.log_temperature.exp()
        with torch.no_grad():
            next_action, log_probability = self._act(batch.next_observation, next_noise, training=False)
        next_pair = torch.cat([batch.next_observation, next_action], -1)
        both = self.critics(torch.cat([batch.pair, next_pair], 1)).squeeze(-1)
        predicted, next_values = both.chunk(2, 2)
        next_value = min_over_critics(next_values.detach()) - temperature.unsqueeze(1) * log_probability
        critic_loss = 0.5 * squared_errors(predicted, backup(batch, next_value, self.config.discount)).sum(1)
        self.critics_adam.minimise(critic_loss)
        if (step + 1) % self.config.policy_delay:
            return {"critic": critic_loss.detach()}
        return {"critic": critic_loss.detach(), **self._update_policy(batch, policy_noise, temperature)}

    def _act(self, observation: Tensor, noise: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return actions (S, B, A) within [-1, 1] and their log-probability (S, B)."""
        mean, log_std = self.actor(observation, training=training).chunk(2, -1)
        return squashed(mean, log_std.clamp(*LOG_STD), noise)

    def _update_policy(self, batch: Batch, noise: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        """Update the policy and the temperature. The critics use their running statistics here."""
        action, log_probability = self._act(batch.observation, noise, training=True)
        pair = torch.cat([batch.observation, action], -1)
        value = min_over_critics(self.critics.fixed()(pair, training=False).squeeze(-1))
        loss = (temperature.unsqueeze(1) * log_probability - value).mean(1)
        self.actor_adam.minimise(loss)
        entropy = -log_probability.detach().mean(1)
        # The loss is log_temperature * (entropy - target), with the target -A.
        self.temperature_adam.step(entropy + self.shape.action)
        return {"actor": loss.detach(), "temperature": temperature, "entropy": entropy}
