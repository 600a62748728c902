"""The denoising network F(c_in x; c_noise): a residual MLP whose noise level arrives through Fourier features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from synther.diffusion.config import NetworkConfig
from synther.kernels.residual import residual_block


class DenoisingNetwork(nn.Module):
    """What every architecture derives from: `forward(x, c_noise)` takes (N, D) and (N, 1) to (N, D).

    Written in plain PyTorch it can be fitted and sampled from. All its parameters are fitted; buffers stay as they are.
    """

    columns: int

    def at_noise(self, x: Tensor, c_noise: float) -> Tensor:
        """`forward` with one noise level for all rows."""
        out: Tensor = self(x, torch.full((len(x), 1), c_noise, device=x.device, dtype=x.dtype))
        return out


N = TypeVar("N", bound=DenoisingNetwork)
N_co = TypeVar("N_co", bound=DenoisingNetwork, covariant=True)


class NetworkSpec(Protocol[N_co]):
    """A frozen dataclass that describes an architecture, such as `NetworkConfig`."""

    def build(self, columns: int) -> N_co:
        """A network for rows of so many columns, with random weights."""
        ...


class Network(DenoisingNetwork):
    """The paper's network. The blocks' weights are one stacked parameter (see gradient.py).

    It begins in float32, whatever PyTorch's default type is.
    """

    def __init__(self, columns: int, config: NetworkConfig) -> None:
        super().__init__()
        # NOTE[paper]: the reference sends every row through `embedding` columns, which loses a part of any wider row
        # (pixel latents have 207). Here the layer grows with the row unless `squeeze` asks for the reference's.
        embedding = config.embedding if config.squeeze else max(config.embedding, columns)
        self.columns, self.config = columns, config
        self.frequencies: Tensor
        linear, empty = partial(nn.Linear, dtype=torch.float32), partial(torch.empty, dtype=torch.float32)
        self.register_buffer("frequencies", torch.randn(config.frequencies, dtype=torch.float32))
        self.level_in = linear(1 + 2 * config.frequencies, embedding)
        self.level_out = linear(embedding, embedding)
        self.row_in = linear(columns, embedding)
        self.widen = linear(embedding, config.width)
        self.block_weight = nn.Parameter(empty(config.depth, config.width, config.width))  # (L, out, in)
        self.block_bias = nn.Parameter(empty(config.depth, config.width))
        self.row_out = linear(config.width, columns)
        bound = 1 / math.sqrt(config.width)  # what nn.Linear starts from
        nn.init.uniform_(self.block_weight, -bound, bound)
        nn.init.uniform_(self.block_bias, -bound, bound)

    @property
    def skip(self) -> bool:
        return self.config.kind == "residual"

    def features(self, c_noise: Tensor) -> Tensor:
        """(N, 1) noise levels to (N, 1 + 2 frequencies), in their type."""
        angles = 2 * math.pi * c_noise * self.frequencies
        return torch.cat([c_noise, angles.sin(), angles.cos()], dim=1)

    def embed(self, c_noise: Tensor) -> Tensor:
        """(N, 1) noise levels to (N, embedding)."""
        features = self.features(c_noise).to(self.level_in.weight.dtype)
        embedded: Tensor = self.level_out(functional.silu(self.level_in(features)))
        return embedded

    def forward(self, x: Tensor, c_noise: Tensor) -> Tensor:
        x = self.widen(self.row_in(x) + self.embed(c_noise))
        for weight, bias in zip(self.block_weight, self.block_bias, strict=True):
            y = functional.linear(functional.relu(x), weight, bias)
            x = x + y if self.skip else y
        out: Tensor = self.row_out(functional.relu(x))
        return out

    def at_noise(self, x: Tensor, c_noise: float) -> Tensor:
        """`forward` with one noise level for all rows, embedded once."""
        return self.forward(x, torch.full((1, 1), c_noise, device=x.device, dtype=x.dtype))


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
    def at_noise(self, x: Tensor, c_noise: float) -> Tensor:
        """(N, D) scaled noisy rows and their noise level to (N, D), in the rows' type."""
        padded = x.new_zeros(len(x), len(self.entry), dtype=self.dtype)
        padded[:, : x.shape[1]] = x
        hidden = torch.addmm(self._entry_bias(c_noise), padded, self.entry)
        last = len(self.weights) - 1
        for block, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = residual_block(hidden, weight, bias, skip=self.network.skip, rectify=block == last)
        out = torch.addmm(self.exit_bias, hidden, self.exit)
        return out[:, : self.network.columns].to(x.dtype)

    def _entry_bias(self, c_noise: float) -> Tensor:
        """(W,)"""
        if c_noise not in self.entry_biases:
            n = self.network
            embedded = n.embed(torch.full((1, 1), c_noise, device=self.entry.device, dtype=n.widen.weight.dtype))
            self.entry_biases[c_noise] = n.widen(n.row_in.bias + embedded).view(-1).to(self.dtype)
        return self.entry_biases[c_noise]


def rearranged(network: Network, columns: Sequence[int | None]) -> Network:
    """A copy of `network` whose column i is the old column `columns[i]`, or one without any weight yet (None).

    As far as rows have the old columns, and no fewer, it is the same function of them.
    """
    with torch.random.fork_rng(devices=[]):  # the weights it starts from are of no interest
        new = Network(len(columns), network.config).to(network.frequencies.device).requires_grad_(False)
    kept = [place for place, old in enumerate(columns) if old is not None]
    source = [old for old in columns if old is not None]
    added = [place for place, old in enumerate(columns) if old is None]
    weights = dict(network.named_parameters())
    with torch.no_grad():
        new.frequencies.copy_(network.frequencies)
        for name, parameter in new.named_parameters():
            old = weights[name].detach()
            parameter.zero_()
            if name == "row_in.weight":
                shared = min(len(parameter), len(old))
                parameter[:shared, kept] = old[:shared, source]
                # The layer where row and noise level meet has grown: each new place sees a new column. What follows it
                # is 0, and were both, neither would ever have a gradient.
                parameter[range(shared, len(parameter)), added[: len(parameter) - shared]] = 1.0
            elif name in ("row_out.weight", "row_out.bias"):
                parameter[kept] = old[source]
            else:
                window = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, old.shape, strict=True))
                parameter[window] = old[window]
    return new
