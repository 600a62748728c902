"""Networks of many members at once: one tensor holds all weights, and each layer is one batched product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synther.agents.layers import numbers, outputs, outputs_and_slopes

_ALIGN = 32  # elements: aligns every network's weights for fast matrix kernels


@dataclass(frozen=True)
class Initial:
    """Initial weights of a network. By default those of PyTorch's linear layer."""

    orthogonal: bool = False
    """Orthogonal matrices with gain sqrt(2), and zero biases."""
    hidden_bias: float | None = None
    """Value of all biases of hidden layers."""
    last: float | None = None
    """Bound of the last layer's uniform weights and biases."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weights (inputs, outputs) and biases (outputs,)."""
        if self.orthogonal:
            return math.sqrt(2) * _orthogonal(inputs, outputs, source), torch.zeros(outputs)
        bound = self.last if is_last and self.last is not None else 1 / math.sqrt(inputs)
        weights = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=source)
        biases = torch.empty(outputs).uniform_(-bound, bound, generator=source)
        if self.hidden_bias is not None and not is_last:
            biases.fill_(self.hidden_bias)
        return weights, biases


def _orthogonal(inputs: int, outputs: int, source: torch.Generator) -> Tensor:
    """A random matrix that is orthonormal along its shorter side (Saxe et al. 2014)."""
    long, short = max(inputs, outputs), min(inputs, outputs)
    q, r = torch.linalg.qr(torch.randn(long, short, generator=source))
    q.mul_(r.diagonal().sign())
    matrix: Tensor = q if inputs >= outputs else q.t()
    return matrix


class Stack:
    """Multi-layer perceptrons of one shape with ReLU between their layers: one network or one ensemble per member.

    `weights` is (S, P) or (S, E, P): a row is one whole network, `matrices, biases, free, padding`. `free` are learned
    numbers that belong to no layer.
    """

    def __init__(self, weights: Tensor, sizes: Sequence[int], free: int = 0) -> None:
        self.weights, self.sizes, self.free_size = weights, tuple(sizes), free

    @property
    def free(self) -> Tensor:
        """(S, F), or (S, E, F)"""
        start = sum(numbers(self.sizes))
        return self.weights[..., start : start + self.free_size]

    def __call__(self, x: Tensor) -> Tensor:
        """x (S, B, in) -> (S, B, out). The networks of an ensemble share x, or have their own (S, E, B, in)."""
        found = outputs(self._rows, x.reshape(-1, *x.shape[-2:]), self.sizes)
        return found.view(*self.weights.shape[:-1], *found.shape[1:])

    def with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For networks with one output and a shared x (S, B, in): outputs (S, E, B) and their gradients in x
        (S, E, B, in). Both are differentiable in the weights."""
        lead = self.weights.shape[:-1]
        value, slope = outputs_and_slopes(self._rows, x, self.sizes)
        return value.view(*lead, -1), slope.view(*lead, *slope.shape[1:])

    @property
    def _rows(self) -> Tensor:
        """One network per row, without grouping."""
        return self.weights.view(-1, self.weights.shape[-1])

    def fixed(self) -> Stack:
        """The same networks without gradients."""
        return Stack(self.weights.detach(), self.sizes, self.free_size)

    def one(self, index: int) -> Stack:
        """One network of each member's ensemble, without gradients."""
        return Stack(self.weights.detach()[:, index], self.sizes, self.free_size)

    def clone(self) -> Stack:
        """A copy without gradients, such as a target network."""
        return self.copy(self.weights.device)

    def copy(self, device: torch.device) -> Stack:
        """A copy of the current networks on `device`."""
        return Stack(self.weights.detach().to(device, copy=True), self.sizes, self.free_size)


def draw_stack(
    sources: Sequence[torch.Generator],
    sizes: Sequence[int],
    device: torch.device,
    *,
    ensemble: int | None = None,
    initial: Initial | None = None,
    free: Sequence[float] = (),
) -> Stack:
    """A trainable stack. Each member's weights are drawn from its own generator (on the CPU)."""
    initial = initial or Initial()
    used = sum(numbers(sizes)) + len(free)
    weights = torch.zeros(len(sources), ensemble or 1, -(-used // _ALIGN) * _ALIGN)
    layers = len(sizes) - 1
    for member, source in enumerate(sources):
        for network in range(ensemble or 1):
            drawn = [initial.layer(sizes[i], sizes[i + 1], i == layers - 1, source) for i in range(layers)]
            parts = [w.flatten() for w, _ in drawn] + [b for _, b in drawn] + [torch.tensor(list(free))]
            weights[member, network, :used] = torch.cat(parts)
    if ensemble is None:
        weights = weights.squeeze(1)
    return Stack(weights.to(device).requires_grad_(), sizes, len(free))
