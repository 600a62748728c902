"""The loss of a batch and its derivative, written out.

The network is a dozen matrix products, and so is its derivative. Written by hand, each gradient lands where the
optimiser wants it, all weight gradients of the blocks are one batched product that fills a GPU where six small ones
leave it idle, and nothing is kept that is not needed. A test holds it to what PyTorch derives from `Network.forward`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from synther.diffusion.networks import Network


def loss_and_gradient(
    network: Network, features: Tensor, rows: Tensor, target: Tensor, gradient: dict[str, Tensor]
) -> Tensor:
    """Write the derivative of mean((F - target)^2) into `gradient`, a tensor for each of the network's parameters.

    `features` (B, 1 + 2K) are the noise levels' Fourier features, `rows` and `target` are (B, D); `features` and `rows`
    are in the type of the weights. Returns the loss, a scalar in the target's type.
    """
    n, g = network, gradient
    blocks = len(n.block_weight)

    # Forwards.
    level = torch.addmm(n.level_in.bias, features, n.level_in.weight.t())
    lit = functional.silu(level)
    meeting = torch.addmm(n.level_out.bias + n.row_in.bias, lit, n.level_out.weight.t())
    meeting.addmm_(rows, n.row_in.weight.t())
    x = torch.addmm(n.widen.bias, meeting, n.widen.weight.t())
    hidden = x.new_empty(blocks + 1, *x.shape)  # what enters each product: (L + 1, B, W)
    for block in range(blocks):
        torch.clamp_min(x, 0, out=hidden[block])
        y = torch.addmm(n.block_bias[block], hidden[block], n.block_weight[block].t())
        x = y.add_(x) if n.skip else y
    torch.clamp_min(x, 0, out=hidden[blocks])
    error = torch.addmm(n.row_out.bias, hidden[blocks], n.row_out.weight.t()) - target

    # Backwards. A sum over the batch is a product with ones, which is faster than a reduction.
    ones = x.new_ones(1, len(x))
    back = (error * (2 / error.numel())).to(x.dtype)
    torch.mm(back.t(), hidden[blocks], out=g["row_out.weight"])
    torch.mm(ones, back, out=g["row_out.bias"].view(1, -1))
    active = hidden.sign()
    upstream = torch.empty_like(hidden)  # what reaches the entry and each block's output: (1 + L, B, W)
    torch.mul(back @ n.row_out.weight, active[blocks], out=upstream[blocks])
    for block in reversed(range(blocks)):
        after = upstream[block + 1]
        through = after @ n.block_weight[block]
        if n.skip:
            torch.addcmul(after, through, active[block], out=upstream[block])
        else:
            torch.mul(through, active[block], out=upstream[block])
    torch.bmm(upstream[1:].transpose(1, 2), hidden[:blocks], out=g["block_weight"])
    torch.matmul(ones, upstream[1:], out=g["block_bias"].unsqueeze(1))
    entry = upstream[0]
    torch.mm(entry.t(), meeting, out=g["widen.weight"])
    torch.mm(ones, entry, out=g["widen.bias"].view(1, -1))
    met = entry @ n.widen.weight
    torch.mm(met.t(), rows, out=g["row_in.weight"])
    torch.mm(ones, met, out=g["row_in.bias"].view(1, -1))
    torch.mm(met.t(), lit, out=g["level_out.weight"])
    g["level_out.bias"].copy_(g["row_in.bias"])
    unlit = torch.ops.aten.silu_backward(met @ n.level_out.weight, level)
    torch.mm(unlit.t(), features, out=g["level_in.weight"])
    torch.mm(ones, unlit, out=g["level_in.bias"].view(1, -1))
    return error.square().mean()
