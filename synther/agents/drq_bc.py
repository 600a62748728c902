"""The heads of DrQ+BC (Lu et al. 2023, V-D4RL): DrQ-v2 with a policy that also imitates the data.

An observation consists of the features of the actor's trunk followed by those of the critic's trunk, or of one set of
features for both. The losses are the same as in the whole agent (`pixels/drq_bc.py`), which trains the encoder too.
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
from synther.agents.networks import Initial
from synther.agents.rows import Batch
from synther.agents.td3_bc import policy_loss
from synther.compute import Lane
from synther.errors import ConfigError, DataError


@dataclass(frozen=True)
class HeadsConfig(AgentConfig):
    """Options that the heads of all pixel agents share. The defaults are those of V-D4RL."""

    width: int = 1024
    """Width of the hidden layers."""
    normalize: bool = field(default=False, init=False)  # features are already within [-1, 1]
    discount: float = 0.99
    """Discount factor of one decision."""
    nstep: int = 1
    """Number of decisions between the observation and the next observation of a row."""
    stddev_start: float = 1.0
    """Standard deviation of the action noise at the first update."""
    stddev_end: float = 0.1
    """Standard deviation of the action noise after `stddev_updates` updates. It falls linearly."""
    stddev_updates: int = 125_000
    """Number of updates over which the noise falls. Default: as in V-D4RL, 250,000 steps with an update at every second
    one."""
    noise_clip: float = 0.3
    """Bound of the action noise in updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("discount")
        self._positive("discount")
        self._at_least(1, "nstep", "stddev_updates")
        self._at_least(0, "stddev_start", "stddev_end", "noise_clip")

    @property
    def row_discount(self) -> float:
        """Factor of the value after the `nstep` decisions of a row."""
        return float(self.discount**self.nstep)


@dataclass(frozen=True)
class DrQBCConfig(HeadsConfig):
    """Options of DrQ+BC."""

    nstep: int = 3
    """Number of decisions between the observation and the next observation of a row."""
    tau: float = 0.01
    """Fraction by which the target critics move per update."""
    alpha: float = 2.5
    """Weight of the value relative to the imitation."""
    features: Literal["both", "shared"] = "both"
    """both: rows have features of the actor and of the critic. shared: rows have one set of features for both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("tau")
        self._at_least(0, "alpha")
        if self.features not in ("both", "shared"):
            raise ConfigError(f"agent.features must be both or shared, got {self.features!r}")


@dataclass(frozen=True)
class Orthonormal(Initial):
    """Initial weights of DrQ-v2's linear layers: orthogonal matrices with gain 1, and zero biases."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        weights, biases = Initial(orthogonal=True).layer(inputs, outputs, is_last, source)
        return weights / math.sqrt(2), biases


def stddev(config: HeadsConfig, updates: Tensor) -> Tensor:
    """Return the standard deviation of the action noise after `updates` updates. It falls linearly to its end."""
    done = (updates / config.stddev_updates).clamp(max=1.0)
    return config.stddev_start + done * (config.stddev_end - config.stddev_start)


def disturbed(action: Tensor, normal: Tensor, std: Tensor, clip: float) -> Tensor:
    """Add noise to actions, and clip the sum to [-1, 1]. The noise itself is clipped to [-clip, clip].

    The gradient ignores the clipping of the sum, so that a policy at its bounds can leave them.
    """
    moved = action + (std * normal).clamp(-clip, clip)
    return moved + (moved.clamp(-1, 1) - moved).detach()


class DrQBC(Algorithm):
    """The heads of DrQ+BC: one actor and two critics on features."""

    config_class: ClassVar[type[AgentConfig]] = DrQBCConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")

    def __init__(self, config: DrQBCConfig, shape: Shape) -> None:
        self.config = config
        both = config.features == "both"
        if both and shape.observation % 2:
            raise DataError(
                f"expected the same number of actor and critic features, got {shape.observation} columns: set "
                "agent.features to shared if actor and critic use one set"
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
        """Return the policy's loss per member (S,), from values (S, B) and actions (S, B, A)."""
        return policy_loss(value, action, batch.action, self.config.alpha)
