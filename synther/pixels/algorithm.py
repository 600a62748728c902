"""Base class of pixel algorithms: an algorithm with an encoder and trunks that learns from stacks of frames."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm
from synther.agents.stacked import Stack
from synther.pixels.encoder import Encoder, Trunk

ACTOR, CRITICS, ENCODER, ACTOR_TRUNK, CRITIC_TRUNK = range(5)
"""Keys of the networks' initial weights. Those of the heads are the same as in `agents/drq_bc.py`."""


class PixelAlgorithm(Algorithm):
    """The observations of its batches are stacks of frames (S, B, C, H, W).

    `uniforms` are used for random shifts: two for the observation and, if the algorithm uses it, two for the next one.
    """

    encoder: Encoder
    actor: Stack
    actor_trunk: Trunk
    critic_trunk: Trunk | None = None

    def state(self) -> dict[str, Tensor]:
        seeing = {name: part for name, part in vars(self).items() if isinstance(part, Encoder | Trunk)}
        return super().state() | {name: part.weights.detach() for name, part in seeing.items()}


def gradients(losses: Tensor, *adams: Adam) -> tuple[Tensor, ...]:
    """Gradients of the members' losses (S,) in the weights of each optimiser, from one backward pass."""
    return torch.autograd.grad(losses, [adam.weights for adam in adams], torch.ones_like(losses))
