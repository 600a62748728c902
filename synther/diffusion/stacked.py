"""The loss of a batch and its derivative for many networks of one shape at once, each on a batch of its own.

Operation by operation it is `gradient.py` with one more axis: a product of matrices is a batched one, which fills a GPU
that the products of a single network leave half idle. A test holds it to what that file says of each network alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from synther.diffusion.flat import FlatWeights

Parameters = dict[str, Tensor]
"""By the names that a `Network` gives them; the first axis counts the networks."""


def windows(flat: FlatWeights, stack: Tensor) -> Parameters:
    """The parameters of all networks, where `stack` (S, P) has them: a row is one network's vector of weights."""
    spans = zip(flat.names, flat.starts, flat.shapes, strict=True)
    return {name: torch.unflatten(stack[:, at : at + shape.numel()], 1, shape) for name, at, shape in spans}


def losses_and_gradients(
    weights: Parameters, features: Tensor, rows: Tensor, target: Tensor, gradient: Parameters, *, skip: bool
) -> Tensor:
    """Write the derivative of each network's mean((F - target)^2) into `gradient`, and return these losses (S,).

    `features` are (S, B, 1 + 2K), `rows` and `target` (S, B, D); `features` and `rows` are in the type of the weights,
    the losses in the target's. `skip` is `Network.skip`.
    """
    w, g = weights, gradient
    blocks = w["block_weight"].shape[1]

    # Forwards.
    level = _linear(features, w["level_in.weight"], w["level_in.bias"])
    lit = functional.silu(level)
    meeting = _linear(lit, w["level_out.weight"], w["level_out.bias"] + w["row_in.bias"])
    meeting.baddbmm_(rows, w["row_in.weight"].mT)
    x = _linear(meeting, w["widen.weight"], w["widen.bias"])
    hidden = x.new_empty(blocks + 1, *x.shape)  # what enters each product: (L + 1, S, B, W)
    for block in range(blocks):
        torch.clamp_min(x, 0, out=hidden[block])
        y = _linear(hidden[block], w["block_weight"][:, block], w["block_bias"][:, block])
        x = y.add_(x) if skip else y
    torch.clamp_min(x, 0, out=hidden[blocks])
    error = _linear(hidden[blocks], w["row_out.weight"], w["row_out.bias"]) - target

    # Backwards. A sum over the batch is a product with ones, which is faster than a reduction.
    ones = x.new_ones(len(x), 1, x.shape[1])
    back = (error * (2 / error[0].numel())).to(x.dtype)
    _in_layer(hidden[blocks], back, ones, g["row_out.weight"], g["row_out.bias"])
    active = hidden.sign()
    after = torch.bmm(back, w["row_out.weight"]).mul_(active[blocks])
    for block in reversed(range(blocks)):
        _in_layer(hidden[block], after, ones, g["block_weight"][:, block], g["block_bias"][:, block])
        through = torch.bmm(after, w["block_weight"][:, block])
        after = torch.addcmul(after, through, active[block]) if skip else through.mul_(active[block])
    _in_layer(meeting, after, ones, g["widen.weight"], g["widen.bias"])
    met = torch.bmm(after, w["widen.weight"])
    _in_layer(rows, met, ones, g["row_in.weight"], g["row_in.bias"])
    torch.bmm(met.mT, lit, out=g["level_out.weight"])
    g["level_out.bias"].copy_(g["row_in.bias"])
    unlit = torch.ops.aten.silu_backward(torch.bmm(met, w["level_out.weight"]), level)
    _in_layer(features, unlit, ones, g["level_in.weight"], g["level_in.bias"])
    return error.square().mean((1, 2))


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (S, B, in), weight (S, out, in), bias (S, out): (S, B, out)"""
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _in_layer(x: Tensor, back: Tensor, ones: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Write the gradients of a layer into `weight` and `bias`, from its input and the gradient in its output."""
    torch.bmm(back.mT, x, out=weight)
    torch.bmm(ones, back, out=bias.unsqueeze(1))
