"""Many multi-layer perceptrons of one shape at once, each a row of one matrix of weights, and their gradients.

A row is `matrices, biases, whatever else`. The gradient of a row is written where the row has its weights, so that
nothing is put together afterwards. Written out by hand because the products that a GPU does best (`kernels.product`)
are none that PyTorch differentiates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.kernels.products import product

Sizes = tuple[int, ...]


def numbers(sizes: Sequence[int]) -> list[int]:
    """How many numbers each matrix has, then each bias."""
    return [*(inputs * outputs for inputs, outputs in pairwise(sizes)), *sizes[1:]]


def outputs(weights: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
    """Of networks with ReLU between their layers, weights (N, P), x (S, B, in): N / S in turn share one x. (N, B, out)

    Differentiable in the weights and in x.
    """
    if torch.is_grad_enabled() and (weights.requires_grad or x.requires_grad):
        result: Tensor = _Outputs.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
        return result
    return _forward(weights, x, sizes)[-1]


def outputs_and_slopes(weights: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The outputs (N, B) of networks with a single one, and their gradients in x (N, B, in).

    Both are differentiable in the weights, and not in x.
    """
    value, slope = _OutputsAndSlopes.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
    return value.squeeze(-1), slope


def _views(rows: Tensor, sizes: Sizes) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices (N, in, out) and biases (N, out), where the rows have them."""
    ends = list(accumulate(numbers(sizes)))
    parts = [rows[:, start:end] for start, end in pairwise([0, *ends])]
    depth = len(sizes) - 1
    matrices = [torch.unflatten(part, 1, sizes[layer : layer + 2]) for layer, part in enumerate(parts[:depth])]
    return matrices, parts[depth:]


def _forward(weights: Tensor, x: Tensor, sizes: Sizes) -> list[Tensor]:
    """What each layer puts out."""
    found = []
    matrices, biases = _views(weights, sizes)
    for layer, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        x = product(x, matrix, bias=bias, rectify=layer < len(matrices) - 1)
        found.append(x)
    return found


def _backward(matrices: list[Tensor], hidden: Sequence[Tensor], last: Tensor) -> list[Tensor]:
    """The gradient in what each layer puts out before its ReLU, from that in the `last` output."""
    found = [last]
    for matrix, active in zip(reversed(matrices), reversed(hidden), strict=False):
        found.append(product(found[-1], matrix.mT, mask=active))
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
    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
        *hidden, last = _forward(weights, x, sizes)
        matrices, _ = _views(weights, sizes)
        deltas = _backward(matrices, hidden, torch.ones_like(last))
        ctx.sizes, ctx.layers = sizes, len(matrices)
        ctx.save_for_backward(weights, x, *hidden, *deltas)
        return last, product(deltas[0], matrices[0].mT)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, in_value: Tensor, in_slope: Tensor) -> tuple[Tensor, None, None]:
        """A slope is linear in each matrix while the same units stay active: it has no gradient in their activity."""
        weights, x, *kept = ctx.saved_tensors
        hidden, slopes = kept[: ctx.layers - 1], kept[ctx.layers - 1 :]
        matrices, _ = _views(weights, ctx.sizes)
        gradient = _in_weights(weights, [x, *hidden], _backward(matrices, hidden, in_value), ctx.sizes)
        places, _ = _views(gradient, ctx.sizes)
        along = in_slope
        for layer, (matrix, place) in enumerate(zip(matrices, places, strict=True)):
            product(along.mT, slopes[layer], out=place, add=True)
            if layer < ctx.layers - 1:
                along = product(along, matrix, mask=hidden[layer])
        return gradient, None, None
