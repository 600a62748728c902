"""DrQ+BC (Lu et al. 2023, V-D4RL) and DrQ-v2 (Yarats et al. 2022) on frames.

The critics' loss trains the encoder. The policy's loss trains only the actor and its trunk.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Noise, Shape
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.drq_bc import DrQBCConfig, Orthonormal, disturbed, stddev
from synther.agents.drq_v2 import value_loss
from synther.agents.rows import Batch
from synther.agents.td3_bc import policy_loss
from synther.errors import ConfigError
from synther.pixels.algorithm import ACTOR, ACTOR_TRUNK, CRITIC_TRUNK, CRITICS, ENCODER, PixelAlgorithm, gradients
from synther.pixels.encoder import FEATURES, Frame, Trunk, draw_encoder, draw_trunk


class PixelDrQBC(PixelAlgorithm):
    """DrQ+BC with its own encoder, and one trunk each for actor and critics."""

    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")
    critic_trunk: Trunk

    def __init__(self, config: DrQBCConfig, shape: Shape, frame: Frame) -> None:
        if config.features != "both":
            raise ConfigError(
                f"a pixel agent has features for actor and critic: agent.features must be both, got {config.features}"
            )
        self.config = config
        self.normals, self.uniforms = 2 * shape.action, 4
        self.encoder = draw_encoder(shape.seeds, ENCODER, frame, shape.device)
        self.actor_trunk = draw_trunk(shape, ACTOR_TRUNK, self.encoder.features)
        self.critic_trunk = draw_trunk(shape, CRITIC_TRUNK, self.encoder.features)
        self.actor = shape.stack(ACTOR, (FEATURES, *config.hidden, shape.action), initial=Orthonormal())
        self.critics = shape.stack(
            CRITICS, (FEATURES + shape.action, *config.hidden, 1), ensemble=2, initial=Orthonormal()
        )
        self.target_critic_trunk, self.target_critics = self.critic_trunk.clone(), self.critics.clone()
        self.encoder_adam, self.actor_trunk_adam, self.critic_trunk_adam, self.actor_adam, self.critics_adam = (
            Adam(part.weights, config.learning_rate)
            for part in (self.encoder, self.actor_trunk, self.critic_trunk, self.actor, self.critics)
        )

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        std = stddev(self.config, self.actor_adam.count)
        for_target, for_policy = noise.normal.chunk(2, -1)
        encoded = self.encoder(batch.observation)
        target = self._target(batch, for_target, std)
        critic_loss = self._update_critics(encoded, batch, target)
        # The policy's loss uses the encoder's output before its update, but the critics after their update.
        actor_loss = self._update_actor(encoded.detach(), batch, for_policy, std)
        return {"critic": critic_loss, "actor": actor_loss}

    @torch.no_grad()
    def _target(self, batch: Batch, normal: Tensor, std: Tensor) -> Tensor:
        """Return the targets (S, B) of the critics."""
        encoded = self.encoder(batch.next_observation)
        action = disturbed(self.actor(self.actor_trunk(encoded)).tanh(), normal, std, self.config.noise_clip)
        value = min_over_critics(values(self.target_critics, self.target_critic_trunk(encoded), action))
        return backup(batch, value, self.config.row_discount)

    def _update_critics(self, encoded: Tensor, batch: Batch, target: Tensor) -> Tensor:
        """Update critics, critic trunk and encoder, and the target networks. Return the loss of each member (S,)."""
        predicted = values(self.critics, self.critic_trunk(encoded), batch.action)
        loss = squared_errors(predicted, target).sum(1)
        adams = self.encoder_adam, self.critic_trunk_adam, self.critics_adam
        of_encoder, of_trunk, of_critics = gradients(loss, *adams)
        tau = self.config.tau
        self.encoder_adam.step(of_encoder)
        self.critic_trunk_adam.step(of_trunk, follower=self.target_critic_trunk.stack, tau=tau)
        self.critics_adam.step(of_critics, follower=self.target_critics, tau=tau)
        return loss.detach()

    def _update_actor(self, encoded: Tensor, batch: Batch, normal: Tensor, std: Tensor) -> Tensor:
        """Update actor and actor trunk. Return the loss of each member (S,)."""
        action = disturbed(self.actor(self.actor_trunk(encoded)).tanh(), normal, std, self.config.noise_clip)
        value = min_over_critics(values(self.critics.fixed(), self.critic_trunk.fixed()(encoded), action))
        loss = self._policy_loss(value, action, batch)
        adams = self.actor_trunk_adam, self.actor_adam
        for adam, gradient in zip(adams, gradients(loss, *adams), strict=True):
            adam.step(gradient)
        return loss.detach()

    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        """Return the policy loss of each member (S,), from values (S, B) and actions (S, B, A)."""
        return policy_loss(value, action, batch.action, self.config.alpha)


class PixelDrQv2(PixelDrQBC):
    """DrQ+BC without imitation: the policy maximises the critics' value."""

    def _policy_loss(self, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        return value_loss(value)
