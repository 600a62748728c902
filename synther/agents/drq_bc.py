"""DrQ+BC (Lu et al. 2023, V-D4RL): DrQ-v2 whose policy also imitates the data. Here its heads learn from features.

An observation is the features of the actor's trunk and then those of the critic's, or one set for both. The losses are
those of the whole agent (`pixels/drq_bc.py`), which learns the features too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import AgentConfig, Algorithm, Noise, Shape
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.rows import Batch
from synther.agents.stacked import Initial
from synther.agents.td3_bc import policy_loss
from synther.compute import Lane
from synther.errors import ConfigError, DataError


@dataclass(frozen=True)
class HeadsConfig(AgentConfig):
    """What all agents that see let one choose of their heads; every number is V-D4RL's."""

    width: int = 1024
    normalize: bool = field(default=False, init=False)  # features lie within [-1, 1] already
    discount: float = 0.99
    """Of one decision."""
    nstep: int = 1
    """Decisions between an observation and the one that it is learned from."""
    stddev_start: float = 1.0
    stddev_end: float = 0.1
    """Of the noise in the policy's actions, from the first update to the last of `stddev_updates`."""
    stddev_updates: int = 125_000
    """V-D4RL says 250,000 steps, and updates at every second one."""
    noise_clip: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("discount")
        self._positive("discount")
        self._at_least(1, "nstep", "stddev_updates")
        self._at_least(0, "stddev_start", "stddev_end", "noise_clip")

    @property
    def row_discount(self) -> float:
        """Of what comes after the `nstep` decisions of a row."""
        return float(self.discount**self.nstep)


@dataclass(frozen=True)
class DrQBCConfig(HeadsConfig):
    nstep: int = 3
    tau: float = 0.01
    """How far the target critics move with every update."""
    alpha: float = 2.5
    """Weight of the value against the imitation."""
    features: Literal["both", "shared"] = "both"
    """Whether rows hold features of the actor and of the critic, or one set that serves both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("tau")
        self._at_least(0, "alpha")
        if self.features not in ("both", "shared"):
            raise ConfigError(f"agent.features must be both or shared, got {self.features!r}")


@dataclass(frozen=True)
class Orthonormal(Initial):
    """Orthogonal matrices of gain 1, biases 0: those of DrQ-v2's linear layers."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        weights, biases = Initial(orthogonal=True).layer(inputs, outputs, is_last, source)
        return weights / math.sqrt(2), biases


def stddev(config: HeadsConfig, updates: Tensor) -> Tensor:
    """Of the noise after so many `updates`, a scalar: it falls on a straight line, and stays."""
    done = (updates / config.stddev_updates).clamp(max=1.0)
    return config.stddev_start + done * (config.stddev_end - config.stddev_start)


def disturbed(action: Tensor, normal: Tensor, std: Tensor, clip: float) -> Tensor:
    """Actions with noise, which is held within `clip`, and the sum within [-1, 1].

    Gradients pass as if nothing were held there, so that a policy at its bounds can leave them.
    """
    moved = action + (std * normal).clamp(-clip, clip)
    return moved + (moved.clamp(-1, 1) - moved).detach()


class DrQBC(Algorithm):
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")

    def __init__(self, config: DrQBCConfig, shape: Shape) -> None:
        self.config = config
        both = config.features == "both"
        if both and shape.observation % 2:
            raise DataError(
                f"expected rows with as many features of the actor as of the critic, got {shape.observation} columns: "
                "set agent.features to shared where one set serves both"
            )
        size = shape.observation // 2 if both else shape.observation
        self._of_actor, self._of_critic = slice(0, size), slice(size if both else 0, None)
        self.normals = 2 * shape.action  # in the target and in the policy
        self.actor = shape.stack(0, (size, *config.hidden, shape.action), initial=Orthonormal())
        self.critics = shape.stack(1, (size + shape.action, *config.hidden, 1), ensemble=2, initial=Orthonormal())
        self.target_critics = self.critics.clone()
        self._aims = Lane(shape.device)
        self.actor_adam = Adam(self.actor.weights, config.learning_rate)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        std = stddev(self.config, self.actor_adam.count)
        for_target, for_policy = noise.normal.chunk(2, -1)
        critic_loss = self._update_critics(batch, for_target, std)
        return {"critic": critic_loss, "actor": self._update_actor(batch, for_policy, std)}

    def _update_critics(self, batch: Batch, normal: Tensor, std: Tensor) -> Tensor:
        c = self.config
        with self._aims.aside(), torch.no_grad():
            following = batch.next_observation
            next_action = disturbed(self.actor(following[..., self._of_actor]).tanh(), normal, std, c.noise_clip)
            next_value = min_over_critics(values(self.target_critics, following[..., self._of_critic], next_action))
            target = backup(batch, next_value, c.row_discount)
        predicted = self.critics(batch.pair[..., self._of_critic]).squeeze(-1)
        self._aims.join()
        loss = squared_errors(predicted, target).sum(1)
        self.critics_adam.minimise(loss, follower=self.target_critics, tau=c.tau)
        return loss.detach()

    def _update_actor(self, batch: Batch, normal: Tensor, std: Tensor) -> Tensor:
        seen, c = batch.observation, self.config
        action = disturbed(self.actor(seen[..., self._of_actor]).tanh(), normal, std, c.noise_clip)
        value = min_over_critics(values(self.critics.fixed(), seen[..., self._of_critic], action))
        loss = self._policy_loss(value, action, batch)
        self.actor_adam.minimise(loss)
        return loss.detach()

    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        """From (S, B), (S, B, A). (S,)"""
        return policy_loss(value, action, batch.action, self.config.alpha)
