"""Base class of pixel algorithms: an algorithm with an encoder and trunks that learns from stacks of frames."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm
from synther.agents.stacked import Stack
from synther.pixels.encoder import Encoder, Trunk

ACTOR, CRITICS, ENCODER, ACTOR_TRUNK, CRITIC_TRUNK = range(5)
"""Keys of the random streams of initial weights. The keys of the heads are the same as in `agents/drq_bc.py`."""


class PixelAlgorithm(Algorithm):
    """An algorithm that learns from batches with stacks of frames (S, B, C, H, W) as observations.

    `uniforms` is the number of uniform random numbers per row for random shifts: two for the observation, and two more
    if the algorithm uses the next observation.
    """

    encoder: Encoder
    actor: Stack
    actor_trunk: Trunk
    critic_trunk: Trunk | None = None

    def state(self) -> dict[str, Tensor]:
        vision = {name: part for name, part in vars(self).items() if isinstance(part, Encoder | Trunk)}
        return super().state() | {name: part.weights.detach() for name, part in vision.items()}


def gradients(losses: Tensor, *adams: Adam) -> tuple[Tensor, ...]:
    """Return the gradients of the members' losses (S,) for the weights of each optimiser, from one backward pass."""
    return torch.autograd.grad(losses, [adam.weights for adam in adams], torch.ones_like(losses))
