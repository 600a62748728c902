"""The denoising network F(c_in x; c_noise): a residual MLP that gets the noise level as Fourier features.

`Network` is the network for fitting. `InferenceNetwork` computes the same function faster, without gradients. Users can
bring another architecture: see `DenoisingNetwork`.
"""

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
    """Base class of all architectures. A subclass defines `forward(x, c_noise)`, from (N, D) and (N, 1) to (N, D).

    A subclass in plain PyTorch can be fitted and sampled from. All its parameters are fitted; its buffers do not
    change. If it takes K conditions, it defines `forward(x, c_noise, given)`, where `given` (N, K) are quantiles and
    NaN means unknown.
    """

    columns: int
    conditions: int = 0

    def at_noise(self, x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        """Call `forward` with one noise level for all rows."""
        level = torch.full((len(x), 1), c_noise, device=x.device, dtype=x.dtype)
        out: Tensor = self(x, level) if given is None else self(x, level, given)
        return out


N = TypeVar("N", bound=DenoisingNetwork)
N_co = TypeVar("N_co", bound=DenoisingNetwork, covariant=True)


class NetworkSpec(Protocol[N_co]):
    """A frozen dataclass that describes an architecture, for example `NetworkConfig`."""

    def build(self, columns: int, conditions: int = 0) -> N_co:
        """Return a network with random weights for rows of `columns` columns.

        `conditions` is passed only if there are conditions, so an architecture without them need not have it.
        """
        ...


class Network(DenoisingNetwork):
    """The network of the paper. The weights of its blocks are one stacked parameter (see gradient.py).

    The weights are initialised in float32, independent of PyTorch's default dtype.
    """

    def __init__(self, columns: int, config: NetworkConfig, conditions: int = 0) -> None:
        super().__init__()
        # NOTE[paper]: in the reference, every row passes through a layer of `embedding` units. It loses a part of every
        # wider row (pixel latents have 207 columns). Here the layer grows with the row, except with `squeeze`.
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
        bound = 1 / math.sqrt(config.width)  # the initialisation of nn.Linear
        nn.init.uniform_(self.block_weight, -bound, bound)
        nn.init.uniform_(self.block_bias, -bound, bound)

    @property
    def skip(self) -> bool:
        """Whether the blocks have a skip connection."""
        return self.config.kind == "residual"

    def features(self, c_noise: Tensor, given: Tensor | None = None) -> Tensor:
        """Encode noise levels (N, 1) and conditions (N, K) as features (N, 1 + 2 frequencies + 9 K).

        They have the dtype of the noise levels. If the network takes conditions and `given` is None, all are unknown.
        """
        angles = 2 * math.pi * c_noise * self.frequencies
        level = torch.cat([c_noise, angles.sin(), angles.cos()], dim=1)
        if not self.conditions:
            return level
        if given is None:
            given = c_noise.new_full((len(c_noise), self.conditions), math.nan)
        return torch.cat([level.expand(len(given), -1), condition_features(given).to(level)], dim=1)

    def embed(self, c_noise: Tensor, given: Tensor | None = None) -> Tensor:
        """Embed noise levels (N, 1), or (1, 1) for all rows, and conditions (N, K). Return (N, embedding)."""
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
        """Call `forward` with one noise level for all rows, which is embedded only once."""
        conditions = () if given is None else (given,)
        return self.forward(x, torch.full((1, 1), c_noise, device=x.device, dtype=x.dtype), *conditions)


WAVES = 8
"""Number of cosine features of a condition."""


def condition_features(given: Tensor) -> Tensor:
    """Encode conditions, quantiles (N, K), as features (N, 9 K).

    The features of a condition are a flag that it is known, and cosine waves of eight frequencies, so that the network
    can distinguish narrow ranges. All nine are 0 if the condition is NaN (unknown).
    """
    known = ~given.isnan()
    waves = torch.arange(1, WAVES + 1, device=given.device, dtype=given.dtype)
    angles = math.pi * given.nan_to_num(0.5).unsqueeze(-1) * waves
    features = torch.cat([torch.ones_like(given).unsqueeze(-1), angles.cos()], dim=-1) * known.unsqueeze(-1)
    return features.flatten(1)


class InferenceNetwork:
    """The same function as `network`, without gradients, at one noise level for all rows, in `dtype`.

    The two linear layers before the blocks have no activation between them. They are merged into one layer, and its
    bias contains the embedded noise level. The input of this layer is padded to a multiple of 8 columns, which matrix
    units need. If rows have conditions, every row has its own bias. On a CPU, conditions that many rows share (for
    example whether a row is an episode start) are embedded once.
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
        self.entry_biases: dict[float, Tensor] = {}  # a cache: a sampler uses the same levels for every block of rows
        if network.conditions:
            shown = (1 + WAVES) * network.conditions
            self.shown_in = compute.right_factor(network.level_in.weight.detach()[:, -shown:].to(dtype))  # (9 K, E)
            out = network.widen.weight.detach().double() @ network.level_out.weight.detach().double()
            self.level_out = compute.right_factor(out.to(dtype))  # (E, W)
            self.level_ins: dict[float, Tensor] = {}
            self.level_rest = network.widen(network.row_in.bias + network.level_out.bias).detach().to(dtype)  # (W,)

    @torch.no_grad()
    def at_noise(self, x: Tensor, c_noise: float, given: Tensor | None = None) -> Tensor:
        """Return the network's output (N, D) for scaled noisy rows (N, D), in their dtype. `given` (N, K) are their
        conditions."""
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
        """Return the bias of the merged entry layer at this noise level (W,)."""
        if c_noise not in self.entry_biases:
            n = self.network
            embedded = n.embed(torch.full((1, 1), c_noise, device=self.entry.device, dtype=n.widen.weight.dtype))
            self.entry_biases[c_noise] = n.widen(n.row_in.bias + embedded).view(-1).to(self.dtype)
        return self.entry_biases[c_noise]

    def _entry_biases(self, c_noise: float, given: Tensor) -> Tensor:
        """Return the bias of the merged entry layer for each row of conditions (N, W)."""
        if given.device.type == "cpu" and (grouped := distinct_rows(given)) is not None:
            distinct, place = grouped
            return self._entry_biases(c_noise, distinct).index_select(0, place)
        n = self.network
        if c_noise not in self.level_ins:
            unknown = n.features(torch.full((1, 1), c_noise, device=self.entry.device, dtype=n.level_in.weight.dtype))
            self.level_ins[c_noise] = n.level_in(unknown).view(-1).to(self.dtype)
        level = torch.addmm(self.level_ins[c_noise], condition_features(given).to(self.dtype), self.shown_in)
        return torch.addmm(self.level_rest, functional.silu(level), self.level_out)


def distinct_rows(given: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the distinct rows of a matrix (N, K), and for each row the index of its distinct row (N,).

    Return None if there are N / 2 distinct rows or more. Rows are compared as bytes, so that NaN equals NaN.
    """
    rows = given.contiguous().numpy()
    code = rows.view(np.dtype((np.void, rows[:1].nbytes))) if rows.shape[1] > 1 else rows.view(f"i{rows.itemsize}")
    _, first, place = np.unique(code[:, 0], return_index=True, return_inverse=True)
    return None if 2 * len(first) >= len(rows) else (given[torch.from_numpy(first)], torch.from_numpy(place))


def rearranged(network: Network, columns: Sequence[int | None], conditions: Sequence[int | None] = ()) -> Network:
    """Return a copy of `network` for rows with other columns and conditions.

    Column i of the new network is the old column `columns[i]`. If that is None, it is a new column, without influence
    on the output yet. `conditions` works in the same way. If all old columns are kept, the new network computes the
    same function of them.
    """
    with torch.random.fork_rng(devices=[]):  # the initial random weights are overwritten below
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
                # The embedding may have grown. Each new unit sees one new column, with weight 1. The weights after
                # these units are 0. If the weights before them were 0 too, neither would ever get a gradient.
                parameter[range(shared, len(parameter)), added[: len(parameter) - shared]] = 1.0
            elif name == "level_in.weight":
                level, shared = 1 + 2 * network.config.frequencies, min(len(parameter), len(old))
                parameter[:shared, :level] = old[:shared, :level]
                for place, old_place in enumerate(conditions):
                    if old_place is not None:
                        start, old_start = (level + (1 + WAVES) * at for at in (place, old_place))
                        copied = old[:shared, old_start : old_start + 1 + WAVES]
                        parameter[:shared, start : start + 1 + WAVES] = copied
            elif name in ("row_out.weight", "row_out.bias"):
                parameter[kept] = old[source]
            else:
                window = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, old.shape, strict=True))
                parameter[window] = old[window]
    return new
