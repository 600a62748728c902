"""A trunk: what is encoded, brought down to a few features by a linear layer, layer norm and tanh. One a member."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from synther.agents.algorithm import Shape
from synther.agents.drq_bc import Orthonormal
from synther.agents.stacked import Stack

FEATURES = 50
"""That are left of an observation."""

_MOST_PARTS = 64


class Trunk:
    """`stack` holds the linear layer (F, features) of every member; its free numbers are gain and shift of the norm."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.inputs, self.features = stack.sizes
        # Of 16 bytes each at least, in the narrowest type: what a GPU reads at once.
        self._parts = max(parts for parts in range(1, _MOST_PARTS + 1) if self.inputs // 8 % parts == 0)

    @property
    def weights(self) -> Tensor:
        return self.stack.weights

    def __call__(self, x: Tensor) -> Tensor:
        """What is encoded (S, B, F) to features (S, B, features) within [-1, 1], in float32."""
        used = self.inputs * self.features
        sizes = [used, self.features, self.features, self.features]
        sizes.append(self.weights.shape[1] - sum(sizes))
        matrix, bias, gain, shift, _ = torch.split(self.weights, sizes, 1)
        matrix = matrix.view(-1, self._parts, self.inputs // self._parts, self.features).to(x.dtype)
        products = torch.stack([self._product(seen, own) for seen, own in zip(x, matrix, strict=True)])
        y = functional.layer_norm(products + bias.unsqueeze(1), (self.features,))
        return torch.tanh(y * gain.unsqueeze(1) + shift.unsqueeze(1))

    def _product(self, x: Tensor, matrix: Tensor) -> Tensor:
        """A product so deep and so narrow keeps few units of a GPU busy: made in parts, whose sum is float32."""
        return torch.bmm(torch.unflatten(x, 1, matrix.shape[:2]).transpose(0, 1), matrix).sum(0, dtype=torch.float32)

    def fixed(self) -> Trunk:
        """The same, to be used and not to be trained."""
        return Trunk(self.stack.fixed())

    def clone(self) -> Trunk:
        """A copy that nobody trains."""
        return Trunk(self.stack.clone())

    def copy(self, device: torch.device) -> Trunk:
        """As it is now, on `device`."""
        return Trunk(self.stack.copy(device))


def draw_trunk(shape: Shape, key: int, inputs: int) -> Trunk:
    """A trainable trunk for every member; its first weights are a function of (seed, key)."""
    free = (*[1.0] * FEATURES, *[0.0] * FEATURES)
    return Trunk(shape.stack(key, (inputs, FEATURES), initial=Orthonormal(), free=free))
