"""The denoising network F(row, noise level): a residual MLP whose noise level arrives through Fourier features."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from synther.diffusion.config import NetworkConfig
from synther.kernels.residual import residual_block


class Network(nn.Module):
    """The network as the paper has it. The blocks' weights are one stacked parameter (see gradient.py).

    It begins in float32, whatever the caller has made PyTorch's default.
    """

    def __init__(self, columns: int, config: NetworkConfig) -> None:
        super().__init__()
        # NOTE[paper]: the reference sends every row through `embedding` columns, which loses a part of any wider row
        # (pixel latents have 207). Here the layer grows with the row unless `squeeze` asks for the reference's.
        meeting = config.embedding if config.squeeze else max(config.embedding, columns)
        self.columns, self.config = columns, config
        self.frequencies: Tensor
        linear, empty = partial(nn.Linear, dtype=torch.float32), partial(torch.empty, dtype=torch.float32)
        self.register_buffer("frequencies", torch.randn(config.frequencies, dtype=torch.float32))
        self.level_in = linear(1 + 2 * config.frequencies, meeting)
        self.level_out = linear(meeting, meeting)
        self.row_in = linear(columns, meeting)
        self.widen = linear(meeting, config.width)
        self.block_weight = nn.Parameter(empty(config.depth, config.width, config.width))  # (L, out, in)
        self.block_bias = nn.Parameter(empty(config.depth, config.width))
        self.row_out = linear(config.width, columns)
        bound = 1 / math.sqrt(config.width)  # what nn.Linear starts from
        nn.init.uniform_(self.block_weight, -bound, bound)
        nn.init.uniform_(self.block_bias, -bound, bound)

    @property
    def skip(self) -> bool:
        return self.config.kind == "residual"

    def features(self, level: Tensor) -> Tensor:
        """(N, 1) noise levels to (N, 1 + 2 frequencies), in the level's type."""
        angles = 2 * math.pi * level * self.frequencies
        return torch.cat([level, angles.sin(), angles.cos()], dim=1)

    def embed(self, level: Tensor) -> Tensor:
        """(N, 1) noise levels to (N, meeting)."""
        features = self.features(level).to(self.level_in.weight.dtype)
        embedded: Tensor = self.level_out(functional.silu(self.level_in(features)))
        return embedded

    def forward(self, row: Tensor, level: Tensor) -> Tensor:
        """(N, D) scaled noisy rows and (N, 1) levels to (N, D)."""
        x = self.widen(self.row_in(row) + self.embed(level))
        for weight, bias in zip(self.block_weight, self.block_bias, strict=True):
            y = functional.linear(functional.relu(x), weight, bias)
            x = x + y if self.skip else y
        out: Tensor = self.row_out(functional.relu(x))
        return out

    def at_level(self, row: Tensor, level: float) -> Tensor:
        """`forward` with one noise level for all rows."""
        return self.forward(row, torch.full((1, 1), level, device=row.device, dtype=row.dtype))


class InferenceNetwork:
    """The same function without gradients, at one noise level for all rows, in `dtype`.

    The two layers before the blocks have nothing between them and become one, whose bias carries the noise level. Its
    input is padded to a multiple of 8 columns, which matrix units need.
    """

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        self.network = network
        self.dtype = dtype
        self.padding = -network.columns % 8
        entry = network.widen.weight.detach().double() @ network.row_in.weight.detach().double()
        self.entry = functional.pad(entry, (0, self.padding)).to(dtype).t()  # (D + padding, W)
        self.weights = [weight.to(dtype).contiguous() for weight in network.block_weight.detach()]
        self.biases = [bias.to(dtype) for bias in network.block_bias.detach()]
        exit_weight = functional.pad(network.row_out.weight.detach(), (0, 0, 0, self.padding))
        self.exit = exit_weight.to(dtype).t()  # (W, D + padding)
        self.exit_bias = functional.pad(network.row_out.bias.detach(), (0, self.padding)).to(dtype)

        self.entry_biases: dict[float, Tensor] = {}  # a sampler meets the same levels for every block of rows

    @torch.no_grad()
    def at_level(self, row: Tensor, level: float) -> Tensor:
        """(N, D) scaled noisy rows and their noise level to (N, D), in the rows' type."""
        padded = row.new_zeros(len(row), len(self.entry), dtype=self.dtype)
        padded[:, : row.shape[1]] = row
        x = torch.addmm(self._entry_bias(level), padded, self.entry)
        last = len(self.weights) - 1
        for block, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = residual_block(x, weight, bias, skip=self.network.skip, rectify=block == last)
        out = torch.addmm(self.exit_bias, x, self.exit)
        return out[:, : self.network.columns].to(row.dtype)

    def _entry_bias(self, level: float) -> Tensor:
        """(W,)"""
        if level not in self.entry_biases:
            n = self.network
            embedded = n.embed(torch.full((1, 1), level, device=self.entry.device, dtype=n.widen.weight.dtype))
            self.entry_biases[level] = n.widen(n.row_in.bias + embedded).view(-1).to(self.dtype)
        return self.entry_biases[level]
