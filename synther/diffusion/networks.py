"""The denoising network F(row, noise level): a residual MLP whose noise level arrives through Fourier features.

The blocks' weights are one stacked parameter. That lets the backward pass compute all weight gradients in one batched
product, which fills a GPU where six small ones leave it idle.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from synther.diffusion.config import NetworkConfig


class Network(nn.Module):
    def __init__(self, columns: int, config: NetworkConfig) -> None:
        super().__init__()
        # NOTE[paper]: the reference sends every row through `embedding` columns, which loses a part of any wider row
        # (pixel latents have 207). Here the layer grows with the row unless `squeeze` asks for the reference's.
        meeting = config.embedding if config.squeeze else max(config.embedding, columns)
        self.columns, self.config = columns, config
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.randn(config.frequencies))
        self.level_in = nn.Linear(1 + 2 * config.frequencies, meeting)
        self.level_out = nn.Linear(meeting, meeting)
        self.row_in = nn.Linear(columns, meeting)
        self.widen = nn.Linear(meeting, config.width)
        self.block_weight = nn.Parameter(torch.empty(config.depth, config.width, config.width))  # (L, out, in)
        self.block_bias = nn.Parameter(torch.empty(config.depth, config.width))
        self.row_out = nn.Linear(config.width, columns)
        bound = 1 / math.sqrt(config.width)  # what nn.Linear starts from
        nn.init.uniform_(self.block_weight, -bound, bound)
        nn.init.uniform_(self.block_bias, -bound, bound)

    @property
    def skip(self) -> bool:
        return self.config.kind == "residual"

    def embed(self, level: Tensor) -> Tensor:
        """(N, 1) noise levels to (N, meeting)."""
        angles = 2 * math.pi * level * self.frequencies
        features = torch.cat([level, angles.sin(), angles.cos()], dim=1).to(self.level_in.weight.dtype)
        embedded: Tensor = self.level_out(functional.silu(self.level_in(features)))
        return embedded

    def forward(self, row: Tensor, level: Tensor) -> Tensor:
        """(N, D) scaled noisy rows and (N, 1) levels to (N, D), in float32."""
        x = self.widen(self.row_in(row.to(self.row_in.weight.dtype)) + self.embed(level))
        x = _Blocks.apply(x, self.block_weight, self.block_bias, self.skip)
        out: Tensor = self.row_out(functional.relu(x))
        return out.to(row.dtype)


class _Blocks(torch.autograd.Function):
    """x <- x + relu(x) W^T + b for each block (without the `x +` in a plain MLP), with a batched backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, skip: bool) -> Tensor:
        hidden = x.new_empty(len(weight), *x.shape)  # (L, N, W)
        for block in range(len(weight)):
            torch.clamp_min(x, 0, out=hidden[block])
            y = torch.addmm(bias[block], hidden[block], weight[block].t())
            x = y.add_(x) if skip else y
        ctx.save_for_backward(hidden, weight)
        ctx.skip = skip
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,) = grads
        hidden, weight = ctx.saved_tensors
        active = hidden.sign()
        upstream = torch.empty_like(hidden)  # the gradient that reaches each block's output
        for block in reversed(range(len(weight))):
            upstream[block] = grad
            through = grad @ weight[block]
            grad = torch.addcmul(grad, through, active[block]) if ctx.skip else through * active[block]
        return grad, torch.bmm(upstream.transpose(1, 2), hidden), upstream.sum(1), None


class FoldedNetwork:
    """The same function for inference at one noise level for all rows, with fewer passes over memory.

    Two layers with nothing between them become one, whose bias carries the noise level. Biases of the blocks are moved
    out of the way: with x = y + c for a constant row c, relu(x) = max(y, -c) + c, so that
    x + relu(x) W^T + b = (y + max(y, -c) W^T) + (c + W c + b): one elementwise pass and one product a block.
    """

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        w, b = network.block_weight.detach().double(), network.block_bias.detach().double()
        constant = torch.zeros_like(b[0])
        floors = []
        for block in range(len(w)):
            floors.append(-constant)
            constant = (constant if network.skip else 0) + w[block] @ constant + b[block]
        floors.append(-constant)
        widen, row_in, row_out = network.widen, network.row_in, network.row_out
        self.network = network
        self.skip = network.skip
        self.dtype = dtype
        self.entry = (widen.weight.double() @ row_in.weight.double()).t().detach().to(dtype)  # (D, W)
        self.weights = [weight.t().to(dtype) for weight in w]
        self.floors = [floor.to(dtype) for floor in floors]
        self.exit = row_out.weight.t().detach().to(dtype)  # (W, D)
        self.exit_bias = (row_out.bias.double() + row_out.weight.double() @ constant).detach().to(dtype)

    def __call__(self, row: Tensor, level: Tensor) -> Tensor:
        """(N, D) scaled noisy rows and one level (1, 1) to (N, D)."""
        network = self.network
        meeting = network.row_in.bias + network.embed(level)
        bias = network.widen(meeting).to(self.dtype)  # (1, W)
        y = torch.addmm(bias, row.to(self.dtype), self.entry)
        for floor, weight in zip(self.floors, self.weights, strict=False):
            active = torch.maximum(y, floor)
            y = y.addmm_(active, weight) if self.skip else active @ weight
        return torch.addmm(self.exit_bias, torch.maximum(y, self.floors[-1]), self.exit).to(row.dtype)
