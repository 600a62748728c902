"""What an algorithm that sees is: an algorithm with an encoder and trunks, learning from stacks of frames."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm
from synther.pixels.encoder import Encoder
from synther.pixels.trunk import Trunk

ACTOR, CRITICS, ENCODER, ACTOR_TRUNK, CRITIC_TRUNK = range(5)
"""Keys of the networks' first weights; those of the heads are as in `agents/drq_bc.py`."""


class PixelAlgorithm(Algorithm):
    """Its batches have stacks of frames (S, B, C, H, W) for observations. `uniforms` shift them: two for what is seen,
    and two for what follows, where the algorithm looks at that.
    """

    encoder: Encoder
    actor_trunk: Trunk
    critic_trunk: Trunk | None = None

    def state(self) -> dict[str, Tensor]:
        seeing = {name: part for name, part in vars(self).items() if isinstance(part, Encoder | Trunk)}
        return super().state() | {name: part.weights.detach() for name, part in seeing.items()}


def gradients(losses: Tensor, *adams: Adam) -> tuple[Tensor, ...]:
    """Of each member's loss (S,), in the weights of each optimiser: one way back for all of them."""
    return torch.autograd.grad(losses, [adam.weights for adam in adams], torch.ones_like(losses))
