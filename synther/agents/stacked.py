"""Networks of many members at once: one tensor holds all their weights, and a layer is one batched product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_ALIGN = 32  # elements: every network's weights start on an address that fast matrix kernels accept


@dataclass(frozen=True)
class Initial:
    """The weights that a network begins with: those of PyTorch's linear layer, unless said otherwise."""

    orthogonal: bool = False
    """Orthogonal matrices of gain sqrt(2), biases 0."""
    hidden_bias: float | None = None
    """One value for all biases of hidden layers."""
    last: float | None = None
    """The last layer's weights and biases are uniform within plus and minus this."""

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
    """A matrix whose shorter side is orthonormal, uniform among those (Saxe et al. 2014)."""
    long, short = max(inputs, outputs), min(inputs, outputs)
    q, r = torch.linalg.qr(torch.randn(long, short, generator=source))
    q.mul_(r.diagonal().sign())
    matrix: Tensor = q if inputs >= outputs else q.t()
    return matrix


class Stack:
    """Multi-layer perceptrons of one shape with ReLU between their layers: one a member, or an ensemble a member.

    `weights` is (S, P) or (S, E, P): a row is one whole network, `matrices, biases, free, padding`. `free` are numbers
    that are learned with the network and are not part of any layer.
    """

    def __init__(self, weights: Tensor, sizes: Sequence[int], free: int = 0) -> None:
        self.weights, self.sizes, self.free_size = weights, tuple(sizes), free
        self._pieces = [*_sizes_of(sizes), free]
        self._pieces.append(weights.shape[-1] - sum(self._pieces))

    @property
    def free(self) -> Tensor:
        """(S, F), or (S, E, F)"""
        end = sum(self._pieces[:-1])
        return self.weights[..., end - self.free_size : end]

    def __call__(self, x: Tensor) -> Tensor:
        """x (S, B, in) -> (S, B, out); an ensemble's networks all see the same x, or each its own (S, E, B, in)."""
        lead = self.weights.shape[:-1]
        if len(lead) == 2 and x.dim() == 3:
            x = x.unsqueeze(1).expand(-1, lead[1], -1, -1)
        rows = x.shape[-2]
        x = x.reshape(-1, *x.shape[-2:])
        # Split, not sliced: its gradient is one concatenation instead of a sum of padded copies.
        pieces = torch.split(self.weights.view(-1, self.weights.shape[-1]), self._pieces, 1)
        layers = len(self.sizes) - 1
        for layer in range(layers):
            matrix = torch.unflatten(pieces[layer], 1, self.sizes[layer : layer + 2])
            x = torch.baddbmm(pieces[layers + layer].unsqueeze(1), x, matrix)
            if layer < layers - 1:
                x = x.relu()
        return x.view(*lead, rows, self.sizes[-1])

    def one(self, index: int) -> Stack:
        """One network of each member's ensemble, to be used and not to be trained."""
        return Stack(self.weights.detach()[:, index], self.sizes, self.free_size)

    def clone(self) -> Stack:
        """A copy that nobody trains: a target network, or a policy kept as it was."""
        return Stack(self.weights.detach().clone(), self.sizes, self.free_size)

    @torch.no_grad()
    def follow(self, other: Stack, tau: float) -> None:
        """Move by the share `tau` towards the weights of `other`."""
        self.weights.lerp_(other.weights, tau)


def _sizes_of(sizes: Sequence[int]) -> list[int]:
    """How many numbers each matrix has, then each bias."""
    return [*(inputs * outputs for inputs, outputs in pairwise(sizes)), *sizes[1:]]


def draw_stack(
    sources: Sequence[torch.Generator],
    sizes: Sequence[int],
    device: torch.device,
    *,
    ensemble: int | None = None,
    initial: Initial | None = None,
    free: Sequence[float] = (),
) -> Stack:
    """A trainable stack, each member's weights drawn from its own generator (on the CPU)."""
    initial = initial or Initial()
    used = sum(_sizes_of(sizes)) + len(free)
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
