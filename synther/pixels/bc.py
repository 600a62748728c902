"""Behaviour cloning on frames, as in V-D4RL (Lu et al. 2023): encoder, trunk and policy learn to imitate the data."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Noise, Shape
from synther.agents.bc import imitation_loss
from synther.agents.drq_bc import Orthonormal, disturbed, stddev
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rows import Batch
from synther.pixels.algorithm import ACTOR, ACTOR_TRUNK, ENCODER, PixelAlgorithm, gradients
from synther.pixels.encoder import FEATURES, Frame, draw_encoder, draw_trunk


class PixelBC(PixelAlgorithm):
    """Behaviour cloning with an encoder and the actor's trunk. It has no critics."""

    losses: ClassVar[tuple[str, ...]] = ("actor",)

    def __init__(self, config: NoisyBCConfig, shape: Shape, frame: Frame) -> None:
        self.config = config
        self.normals, self.uniforms = shape.action, 2
        self.encoder = draw_encoder(shape.seeds, ENCODER, frame, shape.device)
        self.actor_trunk = draw_trunk(shape, ACTOR_TRUNK, self.encoder.features)
        self.actor = shape.stack(ACTOR, (FEATURES, *config.hidden, shape.action), initial=Orthonormal())
        self.encoder_adam, self.actor_trunk_adam, self.actor_adam = (
            Adam(part.weights, config.learning_rate) for part in (self.encoder, self.actor_trunk, self.actor)
        )

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        std = stddev(self.config, self.actor_adam.count)
        action = self.actor(self.actor_trunk(self.encoder(batch.observation))).tanh()
        loss = imitation_loss(disturbed(action, noise.normal, std, self.config.noise_clip), batch.action)
        adams = self.encoder_adam, self.actor_trunk_adam, self.actor_adam
        for adam, gradient in zip(adams, gradients(loss, *adams), strict=True):
            adam.step(gradient)
        return {"actor": loss.detach()}
