"""The head of behaviour cloning as in V-D4RL (Lu et al. 2023), with the action noise of DrQ-v2.

It learns from the features of a trained trunk. `pixels/bc.py` trains the encoder too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape
from synther.agents.bc import imitation_loss
from synther.agents.drq_bc import HeadsConfig, Orthonormal, disturbed, stddev
from synther.agents.rows import Batch


@dataclass(frozen=True)
class NoisyBCConfig(HeadsConfig):
    """Options of the head of behaviour cloning. `discount` and `nstep` only affect how rows are made."""


class NoisyBC(Algorithm):
    """Behaviour cloning of features, with noise on the policy's actions."""

    config_class = NoisyBCConfig
    losses: ClassVar[tuple[str, ...]] = ("actor",)

    def __init__(self, config: NoisyBCConfig, shape: Shape) -> None:
        self.config = config
        self.normals = shape.action
        self.actor = shape.stack(0, (shape.observation, *config.hidden, shape.action), initial=Orthonormal())
        self.actor_adam = Adam(self.actor.weights, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        std = stddev(self.config, self.actor_adam.count)
        action = disturbed(self.actor(batch.observation).tanh(), noise.normal, std, self.config.noise_clip)
        loss = imitation_loss(action, batch.action)
        self.actor_adam.minimise(loss)
        return {"actor": loss.detach()}
