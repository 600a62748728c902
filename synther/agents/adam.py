"""Adam (Kingma and Ba 2015) over one tensor, with a state that stays where it is and can be captured and saved."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """The optimiser of one tensor of weights."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.weights, self.rate = weights, rate
        self.mean = torch.zeros_like(weights, requires_grad=False)
        self.square = torch.zeros_like(weights, requires_grad=False)
        self.count = torch.zeros((), device=weights.device)

    def minimise(self, losses: Tensor, rate: float | Tensor | None = None) -> None:
        """One step down `losses` (S,): each depends on its own member's weights only, so their sum serves all."""
        self.step(self.gradient(losses), rate)

    def gradient(self, losses: Tensor) -> Tensor:
        """Of each member's loss, in the shape of the weights."""
        return torch.autograd.grad(losses.sum(), self.weights)[0]

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float | Tensor | None = None) -> None:
        """One step against `gradient`, at another `rate` than usual where one is given."""
        adam(
            [self.weights], [gradient], [self.mean], [self.square], [], [self.count], fused=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.rate if rate is None else rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """What changes from step to step, apart from the weights."""
        return {"mean": self.mean, "square": self.square, "count": self.count}
