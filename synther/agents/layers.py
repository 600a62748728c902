"""Forward and backward passes of many multi-layer perceptrons of one shape, each a row of one weight matrix.

A row is `matrices, biases, other numbers`. The gradient has the same layout, so nothing has to be concatenated. The
backward pass is written by hand, because PyTorch cannot differentiate the fastest GPU products (`kernels.product`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.kernels.products import column_sums, product

Sizes = tuple[int, ...]


def numbers(sizes: Sequence[int]) -> list[int]:
    """Sizes of the matrices, then of the biases."""
    return [*(inputs * outputs for inputs, outputs in pairwise(sizes)), *sizes[1:]]


def outputs(weights: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
    """Outputs (N, B, out) of networks with ReLU between layers. Weights (N, P), x (S, B, in), each shared by N / S.

    Differentiable in the weights and in x.
    """
    if torch.is_grad_enabled() and (weights.requires_grad or x.requires_grad):
        result: Tensor = _Outputs.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
        return result
    return _forward(weights, x, sizes)[-1]


def outputs_and_slopes(weights: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The outputs (N, B) of networks with one output, and their gradients in x (N, B, in).

    Both are differentiable in the weights, but not in x.
    """
    value, slope = _OutputsAndSlopes.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
    return value.squeeze(-1), slope


def _views(rows: Tensor, sizes: Sizes) -> tuple[list[Tensor], list[Tensor]]:
    """Views of the rows: matrices (N, in, out) and biases (N, out)."""
    counts = numbers(sizes)
    *parts, _ = torch.split(rows, [*counts, rows.shape[1] - sum(counts)], 1)
    depth = len(sizes) - 1
    matrices = [torch.unflatten(part, 1, sizes[layer : layer + 2]) for layer, part in enumerate(parts[:depth])]
    return matrices, parts[depth:]


def _forward(weights: Tensor, x: Tensor, sizes: Sizes, places: Sequence[Tensor] = ()) -> list[Tensor]:
    """Outputs of all layers, written into `places` where given."""
    found = []
    matrices, biases = _views(weights, sizes)
    for layer, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        place = places[layer] if layer < len(places) else None
        x = product(x, matrix, bias=bias, rectify=layer < len(matrices) - 1, out=place)
        found.append(x)
    return found


def _backward(
    matrices: list[Tensor], hidden: Sequence[Tensor], last: Tensor, places: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The gradient in what each layer puts out before its ReLU, from that in the `last` output."""
    found = [last]
    for layer in range(len(hidden), 0, -1):
        place = None if places is None else places[layer - 1]
        found.append(product(found[-1], matrices[layer].mT, mask=hidden[layer - 1], out=place))
    return found[::-1]


def _in_weights(weights: Tensor, inputs: Sequence[Tensor], deltas: Sequence[Tensor], sizes: Sizes) -> Tensor:
    """The gradient in the weights, from each layer's input and the gradient in its output."""
    gradient = torch.empty_like(weights, memory_format=torch.contiguous_format)
    for seen, delta, matrix, bias in zip(inputs, deltas, *_views(gradient, sizes), strict=True):
        product(seen.mT, delta, out=matrix, sums=bias)
    gradient[:, sum(numbers(sizes)) :].zero_()
    return gradient


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
        *hidden, last = _forward(weights, x, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(weights, x, *hidden)
        return last

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, last: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, x, *hidden = ctx.saved_tensors
        matrices, _ = _views(weights, ctx.sizes)
        deltas = _backward(matrices, hidden, last)
        in_weights = in_x = None
        if ctx.needs_input_grad[0]:
            in_weights = _in_weights(weights, [x, *hidden], deltas, ctx.sizes)
        if ctx.needs_input_grad[1]:
            in_x = product(deltas[0], matrices[0].mT)
            if len(x) < len(in_x):
                in_x = torch.unflatten(in_x, 0, (len(x), -1)).sum(1)
        return in_weights, in_x, None


class _OutputsAndSlopes(torch.autograd.Function):
    """Outputs and slopes (gradients in x). A slope is linear in each matrix as long as the same units are active.

    So the gradient of a matrix is a sum of two products of the form (input)^T (delta): one for the outputs, one for the
    slopes. Both are stored below each other, so that one product computes the sum.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
        rows = x.shape[1]
        into, back = (
            [weights.new_empty(len(weights), 2 * rows, size) for size in part] for part in (sizes[1:-1], sizes[1:])
        )
        *hidden, last = _forward(weights, x, sizes, [place[:, :rows] for place in into])
        matrices, _ = _views(weights, sizes)
        back[-1][:, rows:] = 1
        slopes = _backward(matrices, hidden, back[-1][:, rows:], [place[:, rows:] for place in back])
        ctx.sizes, ctx.into, ctx.back = sizes, into, back
        ctx.save_for_backward(weights, x)
        return last, product(slopes[0], matrices[0].mT)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, in_value: Tensor, in_slope: Tensor) -> tuple[Tensor, None, None]:
        weights, x = ctx.saved_tensors
        into, back, rows = ctx.into, ctx.back, x.shape[1]
        matrices, _ = _views(weights, ctx.sizes)
        hidden = [place[:, :rows] for place in into]
        back[-1][:, :rows] = in_value
        deltas = _backward(matrices, hidden, back[-1][:, :rows], [place[:, :rows] for place in back])
        gradient = torch.empty_like(weights)
        of_matrices, of_biases = _views(gradient, ctx.sizes)
        product(x.mT, deltas[0], out=of_matrices[0], sums=of_biases[0])
        product(in_slope.mT, back[0][:, rows:], out=of_matrices[0], add=True)
        for layer in range(1, len(matrices)):
            along = in_slope if layer == 1 else into[layer - 2][:, rows:]
            product(along, matrices[layer - 1], mask=hidden[layer - 1], out=into[layer - 1][:, rows:])
            product(into[layer - 1].mT, back[layer], out=of_matrices[layer])
            column_sums(deltas[layer], of_biases[layer])
        gradient[:, sum(numbers(ctx.sizes)) :].zero_()
        return gradient, None, None
