"""The denoising network F(c_in x; c_noise): a residual MLP whose noise level arrives through Fourier features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from synther import compute
from synther.diffusion.config import NetworkConfig
from synther.kernels.residual import residual_block


class DenoisingNetwork(nn.Module):
    """What every architecture derives from: `forward(x, c_noise)` takes (N, D) and (N, 1) to (N, D).

    Written in plain PyTorch it can be fitted and sampled from. All its parameters are fitted; buffers stay as they are.
    One that takes K conditions has `forward(x, c_noise, given)`, with quantiles (N, K) of which NaN is unknown.
    """

    columns: int
    conditions: int = 0

    def at_noise(self, x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        """`forward` with one noise level for all rows."""
        level = torch.full((len(x), 1), c_noise, device=x.device, dtype=x.dtype)
        out: Tensor = self(x, level) if given is None else self(x, level, given)
        return out


N = TypeVar("N", bound=DenoisingNetwork)
N_co = TypeVar("N_co", bound=DenoisingNetwork, covariant=True)


class NetworkSpec(Protocol[N_co]):
    """A frozen dataclass that describes an architecture, such as `NetworkConfig`."""

    def build(self, columns: int, conditions: int = 0) -> N_co:
        """A network for rows of so many columns, with random weights. It is asked for conditions only where there are
        some."""
        ...


class Network(DenoisingNetwork):
    """The paper's network. The blocks' weights are one stacked parameter (see gradient.py).

    It begins in float32, whatever PyTorch's default type is.
    """

    def __init__(self, columns: int, config: NetworkConfig, conditions: int = 0) -> None:
        super().__init__()
        # NOTE[paper]: the reference sends every row through `embedding` columns, which loses a part of any wider row
        # (pixel latents have 207). Here the layer grows with the row unless `squeeze` asks for the reference's.
        embedding = config.embedding if config.squeeze else max(config.embedding, columns)
        self.columns, self.config, self.conditions = columns, config, conditions
        self.frequencies: Tensor
        linear, empty = partial(nn.Linear, dtype=torch.float32), partial(torch.empty, dtype=torch.float32)
        self.register_buffer("frequencies", torch.randn(config.frequencies, dtype=torch.float32))
        self.level_in = linear(1 + 2 * config.frequencies + (1 + WAVES) * conditions, embedding)
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

    def features(self, c_noise: Tensor, given: Tensor | None = None) -> Tensor:
        """(N, 1) noise levels and (N, K) conditions to (N, 1 + 2 frequencies + 9 K), in the type of the levels."""
        angles = 2 * math.pi * c_noise * self.frequencies
        level = torch.cat([c_noise, angles.sin(), angles.cos()], dim=1)
        if not self.conditions:
            return level
        if given is None:
            given = c_noise.new_full((len(c_noise), self.conditions), math.nan)
        return torch.cat([level.expand(len(given), -1), condition_features(given).to(level)], dim=1)

    def embed(self, c_noise: Tensor, given: Tensor | None = None) -> Tensor:
        """(N, 1) noise levels, or one for all, and (N, K) conditions to (N, embedding)."""
        features = self.features(c_noise, given).to(self.level_in.weight.dtype)
        embedded: Tensor = self.level_out(functional.silu(self.level_in(features)))
        return embedded

    def forward(self, x: Tensor, c_noise: Tensor, given: Tensor | None = None) -> Tensor:
        x = self.widen(self.row_in(x) + self.embed(c_noise, given))
        for weight, bias in zip(self.block_weight, self.block_bias, strict=True):
            y = functional.linear(functional.relu(x), weight, bias)
            x = x + y if self.skip else y
        out: Tensor = self.row_out(functional.relu(x))
        return out

    def at_noise(self, x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        """`forward` with one noise level for all rows, embedded once."""
        told = () if given is None else (given,)
        return self.forward(x, torch.full((1, 1), c_noise, device=x.device, dtype=x.dtype), *told)


WAVES = 8


def condition_features(given: Tensor) -> Tensor:
    """Quantiles (N, K) to (N, 9 K): whether each is known, and eight waves of it, so that narrow ranges differ. All
    are 0 for NaN, which is unknown."""
    known = ~given.isnan()
    waves = torch.arange(1, WAVES + 1, device=given.device, dtype=given.dtype)
    angles = math.pi * given.nan_to_num(0.5).unsqueeze(-1) * waves
    features = torch.cat([torch.ones_like(given).unsqueeze(-1), angles.cos()], dim=-1) * known.unsqueeze(-1)
    return features.flatten(1)


class InferenceNetwork:
    """The same function without gradients, at one noise level for all rows, in `dtype`.

    The two layers before the blocks have nothing between them and become one, whose bias carries the noise level. Its
    input is padded to a multiple of 8 columns, which matrix units need. Where rows have conditions, each has a bias of
    its own. On a CPU, conditions that many rows share (such as whether a row begins an episode) are embedded once.
    """

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        self.network = network
        self.dtype = dtype
        self.padding = -network.columns % 8
        entry = network.widen.weight.detach().double() @ network.row_in.weight.detach().double()
        self.entry = compute.right_factor(functional.pad(entry, (0, self.padding)).to(dtype))  # (D + padding, W)
        self.weights = [compute.right_factor(weight.to(dtype)).t() for weight in network.block_weight.detach()]
        self.biases = [bias.to(dtype) for bias in network.block_bias.detach()]
        exit_weight = functional.pad(network.row_out.weight.detach(), (0, 0, 0, self.padding))
        self.exit = compute.right_factor(exit_weight.to(dtype))  # (W, D + padding)
        self.exit_bias = functional.pad(network.row_out.bias.detach(), (0, self.padding)).to(dtype)
        self.entry_biases: dict[float, Tensor] = {}  # a sampler meets the same levels for every block of rows
        if network.conditions:
            shown = (1 + WAVES) * network.conditions
            self.shown_in = compute.right_factor(network.level_in.weight.detach()[:, -shown:].to(dtype))  # (9 K, E)
            out = network.widen.weight.detach().double() @ network.level_out.weight.detach().double()
            self.level_out = compute.right_factor(out.to(dtype))  # (E, W)
            self.level_ins: dict[float, Tensor] = {}
            self.level_rest = network.widen(network.row_in.bias + network.level_out.bias).detach().to(dtype)  # (W,)

    @torch.no_grad()
    def at_noise(self, x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        """(N, D) scaled noisy rows, their noise level and conditions (N, K) to (N, D), in the rows' type."""
        padded = x.new_zeros(len(x), len(self.entry), dtype=self.dtype)
        padded[:, : x.shape[1]] = x
        if given is None:
            hidden = torch.addmm(self._entry_bias(c_noise), padded, self.entry)
        else:
            hidden = torch.addmm(self._entry_biases(c_noise, given), padded, self.entry)
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

    def _entry_biases(self, c_noise: float, given: Tensor) -> Tensor:
        """(N, W)"""
        if given.device.type == "cpu" and (found := distinct_rows(given)) is not None:
            distinct, place = found
            return self._entry_biases(c_noise, distinct).index_select(0, place)
        n = self.network
        if c_noise not in self.level_ins:
            unknown = n.features(torch.full((1, 1), c_noise, device=self.entry.device, dtype=n.level_in.weight.dtype))
            self.level_ins[c_noise] = n.level_in(unknown).view(-1).to(self.dtype)
        level = torch.addmm(self.level_ins[c_noise], condition_features(given).to(self.dtype), self.shown_in)
        return torch.addmm(self.level_rest, functional.silu(level), self.level_out)


def distinct_rows(given: Tensor) -> tuple[Tensor, Tensor] | None:
    """The different rows of a matrix (N, K), and which of them each row is (N,); None if half of them or more differ.

    Rows are compared as bytes, so that NaN equals NaN.
    """
    rows = given.contiguous().numpy()
    code = rows.view(np.dtype((np.void, rows[:1].nbytes))) if rows.shape[1] > 1 else rows.view(f"i{rows.itemsize}")
    _, first, place = np.unique(code[:, 0], return_index=True, return_inverse=True)
    return None if 2 * len(first) >= len(rows) else (given[torch.from_numpy(first)], torch.from_numpy(place))


def rearranged(network: Network, columns: Sequence[int | None], conditions: Sequence[int | None] = ()) -> Network:
    """A copy of `network` whose column i is the old column `columns[i]`, or one without any weight yet (None).
    Conditions likewise.

    As far as rows have the old columns, and no fewer, it is the same function of them.
    """
    with torch.random.fork_rng(devices=[]):  # the weights it starts from are of no interest
        new = Network(len(columns), network.config, len(conditions))
    new.to(network.frequencies.device).requires_grad_(False)
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
            elif name == "level_in.weight":
                level, shared = 1 + 2 * network.config.frequencies, min(len(parameter), len(old))
                parameter[:shared, :level] = old[:shared, :level]
                for place, before in enumerate(conditions):
                    if before is not None:
                        here, there = (level + (1 + WAVES) * at for at in (place, before))
                        parameter[:shared, here : here + 1 + WAVES] = old[:shared, there : there + 1 + WAVES]
            elif name in ("row_out.weight", "row_out.bias"):
                parameter[kept] = old[source]
            else:
                window = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, old.shape, strict=True))
                parameter[window] = old[window]
    return new
