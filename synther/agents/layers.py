"""Forward and backward passes of many multi-layer perceptrons of one shape. Each network is a row of a weight matrix.

The row of a plain perceptron is `matrices, biases, other numbers`. The row of a perceptron with layer norm has the
parameters of its module. The gradient has the same layout, so nothing has to be concatenated. The backward pass is
written by hand, because PyTorch cannot differentiate the fastest GPU products (`kernels.products`).

Shapes: N networks, P numbers in a row, S inputs that are shared by N / S consecutive networks each, B rows of a batch.
A *delta* is the gradient of the loss with respect to the output of a layer before its ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm

from synther.kernels import perceptrons
from synther.kernels.layer_norm import EPS, norm_relu, norm_relu_backward
from synther.kernels.perceptrons import Perceptron
from synther.kernels.products import column_sums, product

Sizes = tuple[int, ...]


def numbers(sizes: Sequence[int]) -> list[int]:
    """Return the number of elements of each matrix, then of each bias vector."""
    return [*(inputs * outputs for inputs, outputs in pairwise(sizes)), *sizes[1:]]


def outputs(weights: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
    """Return the outputs (N, B, out) of networks with ReLU between layers, for weights (N, P) and inputs x (S, B, in).

    The result is differentiable with respect to the weights and x.
    """
    if torch.is_grad_enabled() and (weights.requires_grad or x.requires_grad):
        result: Tensor = _Outputs.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
        return result
    kind = Perceptron(sizes)
    return perceptrons.outputs(kind, weights, x) if kind.fits(weights, x) else _forward(weights, x, sizes)[-1]


def outputs_and_slopes(weights: Tensor, x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return the outputs (N, B) of networks with one output, and their gradients with respect to x (N, B, in).

    Both are differentiable with respect to the weights, but not to x.
    """
    value, slope = _OutputsAndSlopes.apply(weights, x, sizes)  # type: ignore[no-untyped-call]
    return value.squeeze(-1), slope


def _views(rows: Tensor, sizes: Sizes) -> tuple[list[Tensor], list[Tensor]]:
    """Return views of the weights `rows` (N, P): matrices (N, in, out) and biases (N, out) of all layers."""
    counts = numbers(sizes)
    *parts, _ = torch.split(rows, [*counts, rows.shape[1] - sum(counts)], 1)
    depth = len(sizes) - 1
    matrices = [torch.unflatten(part, 1, sizes[layer : layer + 2]) for layer, part in enumerate(parts[:depth])]
    return matrices, parts[depth:]


def _forward(weights: Tensor, x: Tensor, sizes: Sizes, places: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the outputs of all layers. They are written to the tensors `places`, for the layers that have one."""
    layer_outputs = []
    matrices, biases = _views(weights, sizes)
    for layer, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        place = places[layer] if layer < len(places) else None
        x = product(x, matrix, bias=bias, rectify=layer < len(matrices) - 1, out=place)
        layer_outputs.append(x)
    return layer_outputs


def _backward(
    matrices: list[Tensor], hidden: Sequence[Tensor], last: Tensor, places: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Return the deltas of all layers, from the delta `last` of the last layer. `hidden` are the hidden outputs."""
    deltas = [last]
    for layer in range(len(hidden), 0, -1):
        place = None if places is None else places[layer - 1]
        deltas.append(product(deltas[-1], matrices[layer].mT, mask=hidden[layer - 1], out=place))
    return deltas[::-1]


def _in_weights(weights: Tensor, inputs: Sequence[Tensor], deltas: Sequence[Tensor], sizes: Sizes) -> Tensor:
    """Return the gradient with respect to the weights, from each layer's input and delta."""
    gradient = torch.empty_like(weights, memory_format=torch.contiguous_format)
    for layer_input, delta, matrix, bias in zip(inputs, deltas, *_views(gradient, sizes), strict=True):
        product(layer_input.mT, delta, out=matrix, sums=bias)
    gradient[:, sum(numbers(sizes)) :].zero_()
    return gradient


class _Outputs(torch.autograd.Function):
    """See `outputs`."""

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
            in_x = _in_x(deltas[0], matrices[0], len(x))
        return in_weights, in_x, None


def _in_x(delta: Tensor, matrix: Tensor, count: int) -> Tensor:
    """Return the gradient with respect to `count` inputs, from the delta of the first layer.

    The gradients of networks that share an input are added.
    """
    gradient = product(delta, matrix.mT)
    return gradient if len(gradient) == count else torch.unflatten(gradient, 0, (count, -1)).sum(1)


class _OutputsAndSlopes(torch.autograd.Function):
    """See `outputs_and_slopes`. A slope is the gradient of an output with respect to x.

    As long as the same units are active, a slope is linear in each matrix. So the gradient of a matrix is a sum of two
    products of the form (input)^T (delta), one for the outputs and one for the slopes. Their factors are stored one
    below the other in the same tensors, so that one product computes the sum.
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


@dataclass(frozen=True)
class NormLayers:
    """The layout of a perceptron with layer norm in a row of weights, and the order of operations in a hidden layer."""

    parameters: Callable[[Tensor], Sequence[Tensor]]
    """A function that returns views of rows (N, P), in the order of the module. A hidden layer has weight (N, out, in),
    bias, scale and shift (N, out). The last layer has weight and bias."""
    kind: Perceptron
    """Its sizes, and whether the norm comes before or after the ReLU."""

    @property
    def norm_first(self) -> bool:
        return self.kind.norm == "before"

    def views(self, rows: Tensor) -> _NormViews:
        """Return the views of rows (N, P), sorted by their kind."""
        weights, *others = (list(self.parameters(rows)[start::4]) for start in range(4))
        return _NormViews([weight.mT for weight in weights], *others)


class _NormViews(NamedTuple):
    """Matrices (N, in, out) and biases (N, out) of all layers, scales and shifts (N, out) of the hidden layers."""

    matrices: list[Tensor]
    biases: list[Tensor]
    scales: list[Tensor]
    shifts: list[Tensor]


def normed_outputs(weights: Tensor, x: Tensor, layers: NormLayers) -> Tensor:
    """Return the outputs (N, B, out) of networks with layer norm, for weights (N, P) and inputs x (S, B, in).

    The result is differentiable once, with respect to the weights and x.
    """
    if torch.is_grad_enabled() and (weights.requires_grad or x.requires_grad):
        result: Tensor = _NormedOutputs.apply(weights, x, layers)  # type: ignore[no-untyped-call]
        return result
    if layers.kind.fits(weights, x):
        return perceptrons.outputs(layers.kind, weights, x)
    return _normed_forward(weights, x, layers)[0]


def normed_outputs_and_slopes(weights: Tensor, x: Tensor, layers: NormLayers) -> tuple[Tensor, Tensor]:
    """Return outputs and slopes of networks with layer norm, as `outputs_and_slopes` does for plain ones.

    All gradients are computed by autograd.
    """
    matrices, biases, scales, shifts = layers.views(weights)
    with torch.enable_grad():
        inputs = x.detach().repeat_interleave(len(weights) // len(x), 0).requires_grad_()
        hidden = inputs
        for matrix, bias, scale, shift in zip(matrices, biases, scales, shifts, strict=False):
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, matrix)
            hidden = hidden if layers.norm_first else hidden.relu()
            normal = layer_norm(hidden, hidden.shape[-1:], eps=EPS)
            hidden = torch.addcmul(shift.unsqueeze(1), normal, scale.unsqueeze(1))
            hidden = hidden.relu() if layers.norm_first else hidden
        value = torch.baddbmm(biases[-1].unsqueeze(1), hidden, matrices[-1]).squeeze(-1)
        (slope,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
    return value, slope


def _normed_forward(weights: Tensor, x: Tensor, layers: NormLayers) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs, and a flat list with product, statistics of the norm and output of each hidden layer."""
    matrices, biases, scales, shifts = layers.views(weights)
    kept = []
    for matrix, bias, scale, shift in zip(matrices, biases, scales, shifts, strict=False):
        made = product(x, matrix)
        x, statistics = norm_relu(made, bias, scale, shift, norm_first=layers.norm_first)
        kept += [made, statistics, x]
    return product(x, matrices[-1], bias=biases[-1]), kept


class _NormedOutputs(torch.autograd.Function):
    """See `normed_outputs`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, layers: NormLayers) -> Tensor:
        last, kept = _normed_forward(weights, x, layers)
        ctx.layers = layers
        ctx.save_for_backward(weights, x, *kept)
        return last

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, x, *kept = ctx.saved_tensors
        made, statistics, hidden = (kept[start::3] for start in range(3))
        matrices, biases, scales, shifts = ctx.layers.views(weights)
        gradient = of = None
        if ctx.needs_input_grad[0]:
            gradient = torch.zeros_like(weights, memory_format=torch.contiguous_format)  # 0 between parameters
            of = ctx.layers.views(gradient)
        for layer in range(len(hidden), -1, -1):
            if of is not None:
                product((hidden[layer - 1] if layer else x).mT, delta, out=of.matrices[layer], sums=of.biases[layer])
            if layer:
                below = layer - 1
                delta = norm_relu_backward(
                    product(delta, matrices[layer].mT), made[below], statistics[below],
                    biases[below], scales[below], shifts[below], norm_first=ctx.layers.norm_first,
                    sums=None if of is None else (of.scales[below], of.shifts[below]),
                )  # fmt: skip
        return gradient, _in_x(delta, matrices[0], len(x)) if ctx.needs_input_grad[1] else None, None
