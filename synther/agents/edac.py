"""EDAC (An et al. 2021): SAC with the minimum over many critics. A loss keeps their action gradients diverse."""

from __future__ import annotations

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
from synther.compute import Lane

_LOG_STD = (-5.0, 2.0)  # bounds of the policy's log std


@dataclass(frozen=True)
class EDACConfig(TargetConfig):
    """Options of EDAC."""

    depth: int = 3
    """Number of hidden layers."""
    normalize: bool = False
    """Normalize observations by the mean and standard deviation of the real data."""
    num_critics: int = 10
    """Number of critics."""
    eta: float = 1.0
    """Weight of the similarity of the critics' action gradients in their loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(2, "num_critics")
        self._at_least(0, "eta")


def similarity(gradients: Tensor) -> Tensor:
    """Return the mean similarity (S,) of the critics' action gradients (S, E, B, A).

    It is the sum over pairs i != j of their cosine, divided by E - 1. The sum over pairs equals
    |sum of unit vectors|^2 - sum of |unit vector|^2, and the last sum is constant.
    """
    unit = gradients / (torch.linalg.vector_norm(gradients, dim=-1, keepdim=True) + 1e-10)
    pairs: Tensor = unit.sum(1).square().sum(-1) - unit.detach().square().sum((1, 3))
    return pairs.mean(1) / (gradients.shape[1] - 1)


class EDAC(Algorithm):
    """EDAC, with a learned temperature."""

    config_class = EDACConfig
    log_std = _LOG_STD
    losses: ClassVar[tuple[str, ...]] = ("critic", "similarity", "actor", "temperature")

    def __init__(self, config: EDACConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.normals = 2 * shape.action
        # The reference passes transposed matrices of the critics to PyTorch's initialisation, so the bound depends on
        # the outputs of a layer.
        actor, critic = Initial(hidden_bias=0.1, last=1e-3), Initial(hidden_bias=0.1, last=3e-3, by_outputs=True)
        self.actor = shape.actor(config, 2 * shape.action, initial=actor)
        self.critics = shape.critics(config, config.num_critics, initial=critic)
        self.target_critics = self.critics.clone()
        self.log_temperature = torch.zeros(len(shape.seeds), device=shape.device)
        self._lane = Lane(shape.device)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)
        self.temperature_adam = Adam(self.log_temperature, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        policy_noise, next_noise = noise.normal.chunk(2, -1)
        with self._lane.aside():  # on a side stream, because the critics change only at the end
            predicted, slopes = self.critics.with_slopes(batch.pair)
        action, log_probability = self._act(batch.observation, policy_noise)
        # The loss is -log_temperature * (log pi + target entropy), with the target entropy -A.
        self.temperature_adam.step(self.shape.action - log_probability.detach().mean(1))
        temperature = self.log_temperature.exp().unsqueeze(1)

        lowest = min_over_critics(values(self.critics.fixed(), batch.observation, action))
        actor_loss = (temperature * log_probability - lowest).mean(1)
        self.actor_adam.minimise(actor_loss)

        target = self._target(batch, next_noise, temperature)
        self._lane.join()
        critic_loss = squared_errors(predicted, target).sum(1)
        similarities = similarity(slopes[..., self.shape.observation :])
        loss = critic_loss + self.config.eta * similarities
        self.critics_adam.minimise(loss, follower=self.target_critics, tau=self.config.tau)
        return {
            "critic": critic_loss.detach(),
            "similarity": similarities.detach(),
            "actor": actor_loss.detach(),
            "temperature": temperature.squeeze(1),
        }

    def _act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (S, B, A) within [-1, 1] and their log-probability (S, B)."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        return squashed(mean, log_std.clamp(*_LOG_STD), noise)

    @torch.no_grad()
    def _target(self, batch: Batch, noise: Tensor, temperature: Tensor) -> Tensor:
        """Return the target values of the critics (S, B)."""
        next_action, log_probability = self._act(batch.next_observation, noise)
        lowest = min_over_critics(values(self.target_critics, batch.next_observation, next_action))
        return backup(batch, lowest - temperature * log_probability, self.config.discount)
