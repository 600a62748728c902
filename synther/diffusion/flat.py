"""All weights of a network as one vector, so that clipping, the optimiser and averaging are one operation each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ALIGN = 64  # elements: every tensor starts on an address that fast matrix kernels accept


class FlatWeights:
    """Where each parameter of a module lies in the vector."""

    def __init__(self, module: nn.Module) -> None:
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.starts: list[int] = []
        self.size = 0
        for shape in self.shapes:
            self.starts.append(self.size)
            self.size += -(-shape.numel() // _ALIGN) * _ALIGN

    def views(self, vector: Tensor) -> list[Tensor]:
        """`vector` (P,) cut into tensors of the parameters' shapes."""
        spans = zip(self.starts, self.shapes, strict=True)
        return [vector[start : start + shape.numel()].view(shape) for start, shape in spans]

    def gather(self, module: nn.Module) -> Tensor:
        """The module's weights as a new float32 vector (P,)."""
        parameters = list(module.parameters())
        vector = torch.zeros(self.size, device=parameters[0].device, dtype=torch.float32)
        for view, parameter in zip(self.views(vector), parameters, strict=True):
            view.copy_(parameter.detach())
        return vector

    def bind(self, module: nn.Module, vector: Tensor) -> None:
        """Make the module's parameters windows into `vector`: whoever changes one changes the other."""
        for view, parameter in zip(self.views(vector), module.parameters(), strict=True):
            parameter.data = view
