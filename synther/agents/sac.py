"""SAC (Haarnoja et al. 2018) and REDQ (Chen et al. 2021) as one algorithm: they differ in the number of critics.

SAC has two critics, and their minimum is the target. REDQ has ten critics, and the minimum of two random ones is the
target. This makes 20 updates per environment step stable. Policy and temperature are updated once per `utd` critic
updates. DroQ, RLPD and SimBa are the same algorithm with other options.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape
from synther.agents.critics import backup, min_over_critics, td_step, values
from synther.agents.gaussian import squashed
from synther.agents.networks import Initial
from synther.agents.rows import Batch
from synther.errors import ConfigError

LOG_STD = (-20.0, 2.0)
"""Bounds of the log std, as in the code of SAC and of REDQ, which the paper used. With EDAC's lower bound of -5, a
policy could not become deterministic."""


@dataclass(frozen=True)
class SACConfig(OnlineConfig):
    """Options of SAC and its relatives."""

    num_critics: int = 2
    """Number of critics."""
    num_min_critics: int = 2
    """Size of a random subset of the critics, drawn for every update. The minimum over the subset is the target."""
    policy_delay: int | None = field(default=None, kw_only=True)
    """Critic updates per update of the policy and the temperature. Default: `utd`."""
    policy_value: Literal["mean", "min"] = field(default="mean", kw_only=True)
    """What the policy maximises: the mean of all critics, as in REDQ, or their minimum, as in SAC."""
    target_entropy: float = field(default=-1.0, kw_only=True)
    """Target entropy per action dimension."""
    first_temperature: float = field(default=1.0, kw_only=True)
    """Initial temperature, the weight of the entropy."""
    log_std: Literal["clamp", "tanh"] = field(default="clamp", kw_only=True)
    """How the policy's log std is bounded: clamped to [-20, 2], or computed as -10 + 6 (1 + tanh x), as in SimBa."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "num_critics", "num_min_critics")
        if self.policy_delay is not None:
            self._at_least(1, "policy_delay")
        self._positive("first_temperature")
        for name, known in (("policy_value", ("mean", "min")), ("log_std", ("clamp", "tanh"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"agent.{name} must be {' or '.join(known)}, got {getattr(self, name)!r}")
        if self.num_min_critics > self.num_critics:
            limit = f"agent.num_critics, {self.num_critics}"
            raise ConfigError(f"agent.num_min_critics must be at most {limit}, got {self.num_min_critics}")
        if self.batch_size < self.num_critics:
            raise ConfigError(
                f"agent.batch_size must be at least agent.num_critics, {self.num_critics}, got {self.batch_size}"
            )


SAC_CONFIG, REDQ_CONFIG = SACConfig(), SACConfig(num_critics=10, utd=20)
"""Options of SAC and of REDQ."""
DROQ_CONFIG = SACConfig(utd=20, critic_network="layer_norm", dropout=0.01)
"""Options of DroQ (Hiraoka et al. 2022). Its authors tuned the dropout rate for each task, from 0.0001 to 0.1."""
RLPD_CONFIG = SACConfig(num_critics=10, utd=20, critic_network="layer_norm", target_entropy=-0.5)
"""Options of RLPD (Ball et al. 2023), to be used with prior data."""
SIMBA_CONFIG = SACConfig(
    width=128,
    depth=1,
    learning_rate=1e-4,
    utd=2,
    actor_network="simba",
    critic_network="simba",
    critic_width=512,
    critic_depth=2,
    weight_decay=1e-2,
    policy_delay=1,
    policy_value="min",
    target_entropy=-0.5,
    first_temperature=0.01,
    log_std="tanh",
    running_norm=True,
)
"""Options of SimBa (Lee et al. 2025) with SAC."""


@dataclass(frozen=True)
class _Glorot(Initial):
    """Glorot-uniform weights and zero biases (Glorot and Bengio 2010), as in REDQ."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        bound = math.sqrt(6 / (inputs + outputs))
        return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=source), torch.zeros(outputs)


class SAC(Algorithm):
    """SAC with any number of critics."""

    config_class = SACConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor", "temperature", "entropy")

    def __init__(self, config: SACConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.normals, self.uniforms = 2 * shape.action, 1
        self.period = config.policy_delay or config.utd
        self.log_std = LOG_STD if config.log_std == "clamp" else None
        self.actor = shape.actor(config, 2 * shape.action, initial=_Glorot())
        self.critics = shape.critics(config, config.num_critics, initial=_Glorot())
        self.target_critics = self.critics.clone()
        first = math.log(config.first_temperature)
        self.log_temperature = torch.full((len(shape.seeds),), first, device=shape.device)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)
        self.temperature_adam = Adam(self.log_temperature, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        single = batch.apply(lambda part: part.unsqueeze(1))
        return self.updates(single, Noise(*(part.unsqueeze(1) for part in noise)), step)

    def updates(self, batches: Batch, noise: Noise, step: int = 0) -> dict[str, Tensor]:
        """Do all updates of one environment step, in groups that end with an update of the policy."""
        losses: dict[str, Tensor] = {}
        count, first = batches.reward.shape[1], 0
        while first < count:
            last = min(count, first + self.period - (step + first) % self.period)
            part = itemgetter((slice(None), slice(first, last)))
            group, group_noise = batches.apply(part), Noise(*map(part, noise))
            losses |= self._updates_until_policy(group, group_noise, (step + last) % self.period == 0)
            first = last
        return losses

    def _updates_until_policy(self, batches: Batch, noise: Noise, is_policy_updated: bool) -> dict[str, Tensor]:
        """Do critic updates, at most up to the next policy update.

        Policy and temperature do not change before it, so all next actions are computed at once.
        """
        c = self.config
        count = batches.reward.shape[1]
        policy_noise, next_noise = noise.normal.chunk(2, -1)
        with torch.no_grad():
            next_action, log_probability = self.act(batches.next_observation.flatten(1, 2), next_noise.flatten(1, 2))
            cost = self.log_temperature.exp().unsqueeze(1) * log_probability
            next_pair = torch.cat([batches.next_observation, torch.unflatten(next_action, 1, (count, -1))], -1)
            # The part of the targets that the critics do not change: the reward, and the entropy at the next state.
            reward = backup(batches, -torch.unflatten(cost, 1, (count, -1)), self.config.discount)
        batches = batches._replace(reward=reward)
        # The first uniform numbers of a batch rank the critics. The critics with the largest ones are a random subset.
        subsets = noise.uniform[:, :, : c.num_critics, 0].topk(c.num_min_critics, sorted=False).indices
        losses: dict[str, Tensor] = {}
        for number in range(count):
            batch, is_last = batches.at(number), number == count - 1
            if is_last and is_policy_updated:  # before the last critic update, as in the code of REDQ
                losses |= self._update_policy(batch, policy_noise[:, number])
            each = self._update_critics(batch, next_pair[:, number], subsets[:, number])
        return losses | {"critic": each.sum(1)}

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self.act(observation, noise, training=False)[0]

    def act(self, observation: Tensor, noise: Tensor, *, training: bool = True) -> tuple[Tensor, Tensor]:
        """Return actions (S, B, A) within [-1, 1] and their log-probability (S, B).

        `noise` is standard normal. With zero noise, the action is tanh of the mean.
        """
        mean, log_std = self.actor(observation, training=training).chunk(2, -1)
        bounded = log_std.clamp(*LOG_STD) if self.config.log_std == "clamp" else -10 + 6 * (1 + log_std.tanh())
        return squashed(mean, bounded, noise)

    def _update_critics(self, batch: Batch, next_pair: Tensor, subset: Tensor) -> Tensor:
        """Update the critics and return their losses (S, E).

        `next_pair` (S, B, O + A) are next observations with the policy's next actions. The rewards of the batch contain
        the entropy of these actions.
        """
        c = self.config
        with torch.no_grad():
            next_values = self._target_values(next_pair, subset)
        return td_step(
            self.critics, batch, next_values, c.discount, self.critics_adam, follower=self.target_critics, tau=c.tau
        )

    def _target_values(self, pair: Tensor, subset: Tensor) -> Tensor:
        """Return the values (S, count, B) of the target critics with the indices `subset` (S, count)."""
        if self.config.num_min_critics == self.config.num_critics:
            return self.target_critics(pair).squeeze(-1)
        if self.target_critics.buffers is None:
            return self.target_critics.chosen(subset)(pair).squeeze(-1)
        # All critics are computed, because a pass through copies of some would not change the original buffers.
        every = self.target_critics(pair).squeeze(-1)
        return every.gather(1, subset.unsqueeze(2).expand(-1, -1, every.shape[2]))

    def _update_policy(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Update the policy, then the temperature. The temperature rises if the entropy is below its target.

        NOTE[paper]: by default the policy maximises the mean of all critics, as in REDQ. The paper's SAC, which is
        REDQ's code with two critics, does the same; the original SAC uses the minimum.
        """
        temperature = self.log_temperature.exp()
        action, log_probability = self.act(batch.observation, noise)
        each = values(self.critics.fixed(), batch.observation, action)
        value = each.mean(1) if self.config.policy_value == "mean" else min_over_critics(each)
        loss = (temperature.unsqueeze(1) * log_probability - value).mean(1)
        self.actor_adam.minimise(loss)
        entropy = -log_probability.detach().mean(1)
        # The loss is log_temperature * (entropy - target), so its gradient is entropy - target.
        self.temperature_adam.step(entropy - self.config.target_entropy * self.shape.action)
        return {"actor": loss.detach(), "temperature": temperature, "entropy": entropy}
