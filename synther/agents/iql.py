"""IQL (Kostrikov et al. 2022): expectile regression on values of the data's actions, advantage-weighted imitation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, TargetConfig
from synther.agents.critics import min_over_critics, td_step
from synther.agents.gaussian import log_probability
from synther.agents.rows import Batch
from synther.compute import Lane

_LOG_STD = (-5.0, 2.0)  # bounds of the policy's log std
_LARGEST_WEIGHT = 100.0  # maximum weight of a row in the imitation
_DECAY_UPDATES = 1_000_000  # default of `IQLConfig.decay_updates` for agents that are trained in Python


@dataclass(frozen=True)
class IQLConfig(TargetConfig):
    """Options of IQL."""

    expectile: float = 0.7
    """Expectile of the value regression. A larger expectile is closer to the value of the best action in the data."""
    beta: float = 3.0
    """Inverse temperature: how strongly better actions are preferred."""
    deterministic: bool = False
    """Train a deterministic policy tanh(net) with the squared error, instead of a Gaussian policy with the
    likelihood."""
    decay_updates: int | None = None
    """Number of updates over which the policy's learning rate falls to 0 along a cosine. None: the length of the
    training run, or a million updates for agents that are trained in Python."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("expectile")
        self._at_least(0, "beta")
        if self.decay_updates is not None:
            self._at_least(1, "decay_updates")

    def over(self, updates: int) -> IQLConfig:
        return self if self.decay_updates is not None else replace(self, decay_updates=updates)


def expectile_loss(advantage: Tensor, expectile: float) -> Tensor:
    """Return the mean of |expectile - 1{u < 0}| u^2 per member (S,), for advantages u = Q - V (S, B)."""
    return ((expectile - (advantage < 0).float()).abs() * advantage.square()).mean(1)


def advantage_weights(advantage: Tensor, beta: float) -> Tensor:
    """Return the imitation weights exp(beta A), at most 100, of advantages A."""
    return (beta * advantage).exp().clamp(max=_LARGEST_WEIGHT)


class IQL(Algorithm):
    """IQL with a Gaussian or a deterministic policy."""

    config_class = IQLConfig
    losses: ClassVar[tuple[str, ...]] = ("value", "critic", "actor")

    def __init__(self, config: IQLConfig, shape: Shape) -> None:
        self.config = config
        self.squash = "tanh" if config.deterministic else "clamp"
        # The log std of the Gaussian does not depend on the state: it is one free number per action column.
        free = () if config.deterministic else (0.0,) * shape.action
        self.actor = shape.actor(config, shape.action, free=free)
        self.critics = shape.critics(config, 2)
        self.value = shape.value(config)
        self.target_critics = self.critics.clone()
        self._for_critics, self._for_actor = Lane(shape.device), Lane(shape.device)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)
        self.value_adam = Adam(self.value.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        c = self.config
        with torch.no_grad():
            next_value = self.value(batch.next_observation).squeeze(-1)
            target_value = min_over_critics(self.target_critics(batch.pair).squeeze(-1))
        advantage = target_value - self.value(batch.observation).squeeze(-1)
        # The three networks are updated independently, with values that were computed before any of these updates.
        with self._for_critics.aside():
            critic_losses = td_step(
                self.critics, batch, next_value.unsqueeze(1), c.discount, self.critics_adam,
                weight=0.5, follower=self.target_critics, tau=c.tau,  # the mean over two critics
            )  # fmt: skip
        with self._for_actor.aside():
            actor_loss = (advantage_weights(advantage.detach(), c.beta) * self._imitation(batch)).mean(1)
            self.actor_adam.minimise(actor_loss, rate=self._actor_rate())
        value_loss = expectile_loss(advantage, c.expectile)
        self.value_adam.minimise(value_loss)
        self._for_critics.join()
        self._for_actor.join()
        return {"value": value_loss.detach(), "critic": critic_losses.sum(1), "actor": actor_loss.detach()}

    def _imitation(self, batch: Batch) -> Tensor:
        """Return the imitation loss of each row (S, B)."""
        output = self.actor(batch.observation)
        if self.config.deterministic:
            return (output.tanh() - batch.action).square().sum(-1)
        return -log_probability(batch.action, output, self.actor.free.clamp(*_LOG_STD).unsqueeze(1))

    def _actor_rate(self) -> Tensor:
        """Return the policy's present learning rate."""
        done = (self.actor_adam.count / (self.config.decay_updates or _DECAY_UPDATES)).clamp(max=1.0)
        return self.config.learning_rate * 0.5 * (1 + torch.cos(math.pi * done))
