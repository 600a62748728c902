"""SAC (Haarnoja et al. 2018) and REDQ (Chen et al. 2021) as one algorithm: they differ in the number of critics.

SAC has two critics and uses their minimum. REDQ has ten and uses the minimum of a random two as the target, which makes
20 updates per environment step stable. Policy and temperature are updated once per `utd` critic updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.gaussian import squashed
from synther.agents.networks import Initial
from synther.agents.rows import Batch
from synther.errors import ConfigError

LOG_STD = (-20.0, 2.0)
"""As in the code of SAC and of REDQ, which the paper used. EDAC's -5 would not let a policy become deterministic."""


@dataclass(frozen=True)
class SACConfig(OnlineConfig):
    num_critics: int = 2
    num_min_critics: int = 2
    """Size of the random subset of critics whose minimum is the target. Drawn for every update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "num_critics", "num_min_critics")
        if self.num_min_critics > self.num_critics:
            limit = f"agent.num_critics, {self.num_critics}"
            raise ConfigError(f"agent.num_min_critics must be at most {limit}, got {self.num_min_critics}")
        if self.batch_size < self.num_critics:
            raise ConfigError(
                f"agent.batch_size must be at least agent.num_critics, {self.num_critics}, got {self.batch_size}"
            )


SAC_CONFIG, REDQ_CONFIG = SACConfig(), SACConfig(num_critics=10, utd=20)


@dataclass(frozen=True)
class _Glorot(Initial):
    """Glorot-uniform weights and zero biases (Glorot and Bengio 2010), as in REDQ."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        bound = math.sqrt(6 / (inputs + outputs))
        return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=source), torch.zeros(outputs)


class SAC(Algorithm):
    config_class = SACConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor", "temperature", "entropy")

    def __init__(self, config: SACConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.normals, self.uniforms, self.period = 2 * shape.action, 1, config.utd
        self.actor = shape.actor(config, 2 * shape.action, initial=_Glorot())
        self.critics = shape.critics(config, config.num_critics, initial=_Glorot())
        self.target_critics = self.critics.clone()
        self.log_temperature = torch.zeros(len(shape.seeds), device=shape.device)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)
        self.temperature_adam = Adam(self.log_temperature, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        alone = Batch(*(part.unsqueeze(1) for part in batch))
        return self.updates(alone, Noise(*(part.unsqueeze(1) for part in noise)), step)

    def updates(self, batches: Batch, noise: Noise, step: int = 0) -> dict[str, Tensor]:
        """Several consecutive updates, from batches (S, updates, B, ...), at most up to the next policy update.

        Policy and temperature do not change before that, so all next actions are computed at once.
        """
        c = self.config
        count = batches.reward.shape[1]
        here, there = noise.normal.chunk(2, -1)
        with torch.no_grad():
            next_action, log_probability = self.act(batches.next_observation.flatten(1, 2), there.flatten(1, 2))
            cost = self.log_temperature.exp().unsqueeze(1) * log_probability
        next_action, cost = (torch.unflatten(part, 1, (count, -1)) for part in (next_action, cost))
        # The first random numbers of a batch rank the critics: those with the largest form a random subset.
        subsets = noise.uniform[:, :, : c.num_critics, 0].topk(c.num_min_critics, sorted=False).indices
        losses: dict[str, Tensor] = {}
        for number in range(count):
            batch = Batch(*(part[:, number] for part in batches))
            losses["critic"] = self._update_critics(batch, next_action[:, number], cost[:, number], subsets[:, number])
        if (step + count) % c.utd == 0:
            losses |= self._update_policy(batch, here[:, -1])
        return losses

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self.act(observation, noise, training=False)[0]

    def act(self, observation: Tensor, noise: Tensor, *, training: bool = True) -> tuple[Tensor, Tensor]:
        """Actions (S, B, A) within [-1, 1] and their log-probability (S, B). Zero noise gives the mean action."""
        mean, log_std = self.actor(observation, training=training).chunk(2, -1)
        return squashed(mean, log_std.clamp(*LOG_STD), noise)

    def _update_critics(self, batch: Batch, next_action: Tensor, cost: Tensor, subset: Tensor) -> Tensor:
        """`next_action` (S, B, A) is the policy's, `cost` is temperature * log pi (S, B)."""
        c = self.config
        with torch.no_grad():
            lowest = min_over_critics(self._target_values(batch.next_observation, next_action, subset))
            target = backup(batch, lowest - cost, c.discount)
        loss = squared_errors(self.critics(batch.pair).squeeze(-1), target).sum(1)
        self.critics_adam.minimise(loss, follower=self.target_critics, tau=c.tau)
        return loss.detach()

    def _target_values(self, observation: Tensor, action: Tensor, subset: Tensor) -> Tensor:
        """Values by the target critics with the indices `subset` (S, count). (S, count, B)"""
        if self.config.num_min_critics == self.config.num_critics:
            return values(self.target_critics, observation, action)
        if self.target_critics.buffers is None:
            return values(self.target_critics.chosen(subset), observation, action)
        every = values(self.target_critics, observation, action)  # a pass of copies would not change the buffers
        return every.gather(1, subset.unsqueeze(2).expand(-1, -1, every.shape[2]))

    def _update_policy(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Update the policy, then the temperature, which rises when the entropy is below its target, -A.

        NOTE[paper]: the policy maximises the mean of all critics, as in REDQ. The paper's SAC, which is REDQ's code
        with two critics, does the same; the original SAC uses the minimum.
        """
        temperature = self.log_temperature.exp()
        action, log_probability = self.act(batch.observation, noise)
        value = values(self.critics.fixed(), batch.observation, action).mean(1)
        loss = (temperature.unsqueeze(1) * log_probability - value).mean(1)
        self.actor_adam.minimise(loss)
        entropy = -log_probability.detach().mean(1)
        # The loss log_temperature (entropy - target) is linear, and the target is -A.
        self.temperature_adam.step(entropy + self.shape.action)
        return {"actor": loss.detach(), "temperature": temperature, "entropy": entropy}
