"""Adam for a few small networks with stacked weights, in few operations. It serves fits that take seconds on a CPU.

torch.optim is not used, because its first use imports PyTorch's compiler, which takes as long as fitting two networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Descent:
    """Adam (Kingma and Ba 2015) with a learning rate that falls to 0 along a cosine.

    Every tensor of `weights` has one entry per network: (M, ...). The networks must use the tensors of the attribute
    `weights` instead, which have the same values. These are views of one matrix with a row per network, so a step takes
    few large operations instead of many small ones.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        steps: int,
        rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float = math.inf,
    ) -> None:
        self.steps, self.rate, self.betas, self.max_grad_norm, self._taken = steps, rate, betas, max_grad_norm, 0
        self._flat = torch.cat([weight.flatten(1) for weight in weights], 1)
        parts = torch.split(self._flat, [weight[0].numel() for weight in weights], 1)
        pairs = zip(parts, weights, strict=True)
        self.weights = [part.view(weight.shape).detach().requires_grad_(True) for part, weight in pairs]
        self._mean, self._square = torch.zeros_like(self._flat), torch.zeros_like(self._flat)

    def step(self, loss: Tensor) -> None:
        """Do one step that lowers `loss`, the sum of the losses of all networks."""
        gradients = torch.autograd.grad(loss, self.weights)
        rate = self.rate * (1 + math.cos(math.pi * self._taken / self.steps)) / 2
        self._taken += 1
        unbiased, unbiased_square = (1 - beta**self._taken for beta in self.betas)
        with torch.no_grad():
            gradient = torch.cat([each.flatten(1) for each in gradients], 1)
            if self.max_grad_norm < math.inf:  # network by network: an outlier batch of one does not affect the others
                norm = gradient.norm(dim=1, keepdim=True)
                gradient *= self.max_grad_norm / norm.clamp_min(self.max_grad_norm)
            self._mean.lerp_(gradient, 1 - self.betas[0])
            self._square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            spread = (self._square.sqrt() / unbiased_square**0.5).add_(1e-8)
            self._flat.addcdiv_(self._mean, spread, value=-rate / unbiased)
