"""CQL (Kumar et al. 2020): SAC with a penalty that lowers the critics' values of actions outside the data.

The variant is CQL(H), with importance sampling of actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, TargetConfig
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.gaussian import squashed
from synther.agents.networks import Initial
from synther.agents.rows import Batch
from synther.errors import ConfigError

_LOG_STD = (-20.0, 2.0)  # bounds of the policy's log std
_LARGEST_MULTIPLIER = 1e6  # maximum of the learned multiplier (Lagrange form)


@dataclass(frozen=True)
class CQLConfig(TargetConfig):
    """Options of CQL."""

    depth: int = 3
    """Number of hidden layers."""
    policy_rate: float = 3e-5
    """Learning rate of the policy and the temperature."""
    actions: int = 10
    """Number of actions sampled per row from each of three distributions: the uniform one, the policy, and the policy
    at the next state."""
    weight: float = 10.0
    """Weight of the gap between the values of these actions and the values of the data's actions."""
    target_action_gap: float | None = None
    """Target of the gap in the Lagrange form, where a learned multiplier scales the weight. None: a fixed weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("policy_rate")
        self._at_least(1, "actions")
        self._at_least(0, "weight")
        if self.target_action_gap is not None and not math.isfinite(self.target_action_gap):
            found = self.target_action_gap
            raise ConfigError(f"agent.target_action_gap must be a finite number or None, got {found}")


def value_gap(drawn: Tensor, log_density: Tensor, data: Tensor) -> Tensor:
    """Return the mean gap per critic (S, E): log sum exp(Q - log density) over sampled actions, minus Q of the data.

    `drawn` (S, E, B, N) are the values of the sampled actions, and `data` (S, E, B) those of the data's actions.
    `log_density` (S, B, N) is the log-density of each action under the distribution from which it was sampled.
    """
    return ((drawn - log_density.unsqueeze(1)).logsumexp(-1) - data).mean(2)


class CQL(Algorithm):
    """CQL(H), with a fixed weight or in the Lagrange form."""

    config_class = CQLConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "gap", "actor", "temperature")

    def __init__(self, config: CQLConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.normals = shape.action * (2 + 2 * config.actions)
        self.uniforms = shape.action * config.actions
        start = Initial(orthogonal=True)
        # The log std is a learned linear function of the network's output x, initially 1 x - 1.
        self.actor = shape.actor(config, 2 * shape.action, initial=start, free=(1.0, -1.0))
        self.critics = shape.critics(config, 2, initial=start)
        self.target_critics = self.critics.clone()
        self.log_temperature = torch.zeros(len(shape.seeds), device=shape.device)
        self.log_multiplier = torch.ones(len(shape.seeds), device=shape.device)
        self.actor_adam = Adam(self.actor.weights, config.policy_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)
        self.temperature_adam = Adam(self.log_temperature, config.policy_rate)
        self.multiplier_adam = Adam(self.log_multiplier, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        """Update all networks. All gradients are computed before any weight changes."""
        size, drawn = self.shape.action, self.config.actions * self.shape.action
        # One action, and then `actions` actions, at the observation and at the next observation.
        one_noise, one_next_noise, drawn_noise, next_drawn_noise = torch.split(
            noise.normal, [size, size, drawn, drawn], -1
        )
        temperature = self.log_temperature.exp().unsqueeze(1)
        mean, log_std = self._policy(batch.observation)
        action, log_probability = squashed(mean, log_std, one_noise)
        lowest = min_over_critics(values(self.critics.fixed(), batch.observation, action))
        actor_loss = (temperature * log_probability - lowest).mean(1)

        with torch.no_grad():
            next_policy = self._policy(batch.next_observation)
            next_action, _ = squashed(*next_policy, one_next_noise)
            next_value = min_over_critics(values(self.target_critics, batch.next_observation, next_action))
            target = backup(batch, next_value, self.config.discount)
            actions, log_density = self._drawn(
                (mean, log_std), next_policy, drawn_noise, next_drawn_noise, noise.uniform
            )
        predicted, of_drawn = self._values(batch, actions)
        gap = value_gap(of_drawn, log_density, predicted)
        critic_loss = squared_errors(predicted, target).sum(1)
        penalty, multiplier_gradient = self._penalty(gap)

        actor_gradient = self.actor_adam.gradient(actor_loss)
        critics_gradient = self.critics_adam.gradient(critic_loss + penalty)
        # The loss is -log_temperature * (log pi + target entropy), with the target entropy -A.
        self.temperature_adam.step(size - log_probability.detach().mean(1))
        self.actor_adam.step(actor_gradient)
        self.critics_adam.step(critics_gradient, follower=self.target_critics, tau=self.config.tau)
        if self.config.target_action_gap is not None:
            self.multiplier_adam.step(multiplier_gradient)
        return {
            "critic": critic_loss.detach(),
            "gap": gap.detach().mean(1),
            "actor": actor_loss.detach(),
            "temperature": temperature.squeeze(1),
        }

    def _policy(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log std of the policy's actions before tanh (S, B, A)."""
        mean, output = self.actor(observation).chunk(2, -1)
        slope, offset = self.actor.free[:, None].chunk(2, -1)
        return mean, (slope * output + offset).clamp(*_LOG_STD)

    def _drawn(
        self, policy: tuple[Tensor, Tensor], next_policy: tuple[Tensor, Tensor], *draws: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sample actions (S, B, 3N, A) from the policy at both states and from the uniform distribution.

        Also return their log-densities (S, B, 3N).
        """
        normal, next_normal, uniform = (torch.unflatten(x, -1, (-1, self.shape.action)) for x in draws)
        sampled = [
            squashed(mean.unsqueeze(2), log_std.unsqueeze(2), noise)
            for (mean, log_std), noise in ((policy, normal), (next_policy, next_normal))
        ]
        uniform_density = torch.full_like(uniform[..., 0], -self.shape.action * math.log(2))
        actions = torch.cat([*(action for action, _ in sampled), uniform], 2)
        return actions, torch.cat([*(density for _, density in sampled), uniform_density], 2)

    def _values(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the data's actions (S, E, B) and of sampled actions (S, E, B, 3N), in one pass."""
        every = torch.cat([batch.action.unsqueeze(2), actions], 2)  # (S, B, 1 + 3N, A)
        observation = batch.observation.unsqueeze(2).expand(-1, -1, every.shape[2], -1)
        value = values(self.critics, observation.flatten(1, 2), every.flatten(1, 2))
        value = torch.unflatten(value, 2, every.shape[1:3])
        return value[..., 0], value[..., 1:]

    def _penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' penalty for the gaps (S, E), and the gradient of the multiplier's loss. Both are (S,)."""
        c = self.config
        if c.target_action_gap is None:
            return c.weight * gap.sum(1), torch.zeros_like(self.log_multiplier)
        multiplier = self.log_multiplier.exp().clamp(max=_LARGEST_MULTIPLIER)
        excess = c.weight * (gap - c.target_action_gap).sum(1)
        # The multiplier's loss is half the negative penalty. A clamped multiplier has no gradient.
        growing = (multiplier < _LARGEST_MULTIPLIER).float()
        return multiplier * excess, -0.5 * multiplier * growing * excess.detach()
