"""Adam (Kingma and Ba 2015) for one tensor of weights.

All tensors of its state have fixed addresses, so that a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther.agents.stacked import Networks
from synther.kernels.adam import adam_step


class Adam:
    """The optimiser of one tensor of weights. With `decay`, it is AdamW (Loshchilov and Hutter 2019)."""

    def __init__(
        self, weights: Tensor, rate: float, *, decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.weights, self.decay, self.betas = weights, decay, betas
        self.rate = torch.tensor(rate, device=weights.device)
        self.mean = torch.zeros_like(weights, requires_grad=False)
        self.square = torch.zeros_like(weights, requires_grad=False)
        self.count = torch.zeros((), device=weights.device)

    def minimise(self, losses: Tensor, **how: Any) -> None:
        """Do one step that lowers the members' `losses` (S,). Each loss depends only on the weights of its member."""
        self.step(self.gradient(losses), **how)

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of each member's loss, in the shape of the weights."""
        return torch.autograd.grad(losses, self.weights, torch.ones_like(losses))[0]

    @torch.no_grad()
    def step(
        self, gradient: Tensor, *, rate: Tensor | None = None, follower: Networks | None = None, tau: float = 0.0
    ) -> None:
        """Do one step with this gradient. `rate` overrides the learning rate for this step.

        Then `follower`, a target network, moves by the fraction `tau` towards the new weights. Its buffers do not
        change.
        """
        self.count += 1
        adam_step(
            self.weights, self.weights, gradient, self.mean, self.square, self.count,
            self.rate if rate is None else rate, max_grad_norm=None,
            beta1=self.betas[0], beta2=self.betas[1], decay=self.decay,
            follower=None if follower is None else follower.weights, tau=tau,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """Return the state of the optimiser, without the weights."""
        return {"mean": self.mean, "square": self.square, "count": self.count}
