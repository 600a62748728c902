"""Networks of agents in plain PyTorch. Each class describes one network; `stacked.py` runs it for all members at once.

A network is chosen by name: `critic_network="layer_norm"`. Another one is a function that returns an `nn.Module`:

    def wide(inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 1024), nn.ELU(), nn.Linear(1024, outputs))

    NETWORKS.register("wide", NetworkFactory(wide))

Modules may be anything that `torch.func.vmap` can run: no branches on the values of tensors. Random numbers come from
`Dropout` below, and running statistics live in buffers, as those of `BatchNorm` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from synther.errors import ConfigError
from synther.registry import Registry


@dataclass(frozen=True)
class Initial:
    """Initial weights of a network. By default those of PyTorch's linear layer."""

    orthogonal: bool = False
    """Orthogonal matrices with gain sqrt(2), and zero biases."""
    hidden_bias: float | None = None
    """Value of all biases of hidden layers."""
    last: float | None = None
    """Bound of the last layer's uniform weights and biases."""
    by_outputs: bool = False
    """Take the bound from a layer's outputs instead of its inputs, 1 / sqrt(outputs)."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weights (inputs, outputs) and biases (outputs,)."""
        if self.orthogonal:
            return math.sqrt(2) * _orthogonal(inputs, outputs, source), torch.zeros(outputs)
        bound = 1 / math.sqrt(outputs if self.by_outputs else inputs)
        if is_last and self.last is not None:
            bound = self.last
        weights = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=source)
        biases = torch.empty(outputs).uniform_(-bound, bound, generator=source)
        if self.hidden_bias is not None and not is_last:
            biases.fill_(self.hidden_bias)
        return weights, biases


def _orthogonal(inputs: int, outputs: int, source: torch.Generator) -> Tensor:
    """A random matrix that is orthonormal along its shorter side (Saxe et al. 2014)."""
    long, short = max(inputs, outputs), min(inputs, outputs)
    q, r = torch.linalg.qr(torch.randn(long, short, generator=source))
    q.mul_(r.diagonal().sign())
    matrix: Tensor = q if inputs >= outputs else q.t()
    return matrix


@dataclass(frozen=True)
class NetworkOptions:
    """What a network is built from, beside the numbers of its inputs and outputs."""

    width: int = 256
    depth: int = 2
    """Hidden layers, or residual blocks."""
    dropout: float = 0.0
    initial: Initial | None = None
    """The algorithm's own initial weights of linear layers. None: PyTorch's."""

    def linear(self, inputs: int, outputs: int, *, is_last: bool = False) -> nn.Linear:
        """A linear layer that begins as the algorithm's layers do."""
        layer = nn.Linear(inputs, outputs)
        if self.initial is not None:
            weight, bias = self.initial.layer(inputs, outputs, is_last, torch.default_generator)
            with torch.no_grad():
                layer.weight.copy_(weight.t())
                layer.bias.copy_(bias)
        return layer


@dataclass(frozen=True)
class NetworkFactory:
    """A named kind of network."""

    build: Callable[[int, int, NetworkOptions], nn.Module]
    """From the numbers of inputs and outputs, and the options."""


class MLP(nn.Sequential):
    """Linear layers with ReLU between them.

    With `norm`, hidden layers are linear, layer norm, ReLU (RLPD, DroQ); with `norm_last`, linear, ReLU, layer norm
    (ReBRAC). Dropout comes after the linear layer, as in DroQ.
    """

    def __init__(
        self, inputs: int, outputs: int, options: NetworkOptions, *, norm: bool = False, norm_last: bool = False
    ) -> None:
        layers: list[nn.Module] = []
        size = inputs
        for _ in range(options.depth):
            layers.append(options.linear(size, options.width))
            size = options.width
            if options.dropout:
                layers.append(Dropout(options.dropout))
            if norm:
                layers.append(nn.LayerNorm(size))
            layers.append(nn.ReLU())
            if norm_last:
                layers.append(nn.LayerNorm(size))
        super().__init__(*layers, options.linear(size, outputs, is_last=True))


class BatchNormMLP(nn.Sequential):
    """CrossQ's network (Bhatt et al. 2024): batch norm of the inputs, and after every ReLU."""

    def __init__(self, inputs: int, outputs: int, options: NetworkOptions) -> None:
        layers: list[nn.Module] = [BatchNorm(inputs)]
        size = inputs
        for _ in range(options.depth):
            layers += [options.linear(size, options.width), nn.ReLU(), BatchNorm(options.width)]
            size = options.width
        super().__init__(*layers, options.linear(size, outputs, is_last=True))


class SimBa(nn.Module):
    """SimBa's network (Lee et al. 2025): residual blocks with layer norm between two linear layers."""

    def __init__(self, inputs: int, outputs: int, options: NetworkOptions) -> None:
        super().__init__()
        width = options.width
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(_SimBaBlock(width) for _ in range(options.depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, outputs)
        for layer in (self.embed, self.head):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        head: Tensor = self.head(self.norm(x))
        return head


class _SimBaBlock(nn.Sequential):
    """Layer norm, a layer of four times the width, ReLU, and a layer back."""

    def __init__(self, width: int) -> None:
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (up, down):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        super().__init__(nn.LayerNorm(width, eps=1e-6), up, nn.ReLU(), down)


class BatchNorm(nn.Module):
    """Batch renormalisation (Ioffe 2017) of rows (B, size), with CrossQ's constants.

    For the first `warmup` passes it is plain batch norm. In evaluation mode the running mean and variance are used.
    """

    mean: Tensor
    variance: Tensor
    passes: Tensor

    def __init__(
        self, size: int, *, momentum: float = 0.01, eps: float = 1e-3, r_max: float = 3.0, d_max: float = 5.0,
        warmup: int = 100_000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.momentum, self.eps, self.r_max, self.d_max, self.warmup = momentum, eps, r_max, d_max, warmup
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        running = (self.variance + self.eps).sqrt()
        if not self.training:
            return (x - self.mean) / running * self.scale + self.shift
        variance, mean = torch.var_mean(x, dim=0, unbiased=False)
        std = (variance + self.eps).sqrt()
        normal = (x - mean) / std
        # Corrections towards the running statistics, without a gradient; none while those are young.
        r = (std / running).detach().clamp(1 / self.r_max, self.r_max)
        d = ((mean - self.mean) / running).detach().clamp(-self.d_max, self.d_max)
        young = self.passes < self.warmup
        normal = torch.where(young, normal, normal * r + d)
        with torch.no_grad():
            for kept, new in ((self.mean, mean), (self.variance, variance)):
                kept.mul_(1 - self.momentum).add_(new.detach(), alpha=self.momentum)
            self.passes.add_(1)
        return normal * self.scale + self.shift


class Dropout(nn.Module):
    """Dropout whose mask depends only on the network's own seed and the number of the pass.

    So a member trains the same alone as together with others, and a resumed training is the same as an uninterrupted
    one. The mask is a hash of (seed, pass, place).
    """

    seed: Tensor
    passes: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigError(f"agent.dropout must lie in [0, 1), got {rate}")
        self.rate = rate
        self.register_buffer("seed", torch.randint(1 << 24, (1,)).float())  # float32 holds these integers exactly
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        with torch.no_grad():
            self.passes.add_(1)
            key = _hashed(_hashed(self.seed.long()) + self.passes.long())
            place = torch.arange(x.numel(), device=x.device).view(x.shape)
            kept = _hashed(place + key) % (1 << 24) >= int(self.rate * (1 << 24))
        return torch.where(kept, x / (1 - self.rate), 0.0)


def _hashed(x: Tensor) -> Tensor:
    """Well-mixed integers in [0, 2^31), one for each integer (int64)."""
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0x7FFFFFFF
    return x ^ (x >> 16)


def _kind(**how: Any) -> Callable[[int, int, NetworkOptions], nn.Module]:
    return lambda inputs, outputs, options: MLP(inputs, outputs, options, **how)


NETWORKS: Registry[NetworkFactory] = Registry(
    "network",
    "synther.networks",
    NetworkFactory,
    {
        "mlp": NetworkFactory(MLP),
        "layer_norm": NetworkFactory(_kind(norm=True)),
        "layer_norm_last": NetworkFactory(_kind(norm_last=True)),
        "batch_norm": NetworkFactory(BatchNormMLP),
        "simba": NetworkFactory(SimBa),
    },
)
"""Kinds of networks by name."""


def build_network(kind: str, inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
    """The network of the registered `kind`. Refuse one that does not map rows of `inputs` to rows of `outputs`."""
    try:
        module = NETWORKS.get(kind).build(inputs, outputs, options)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"network {kind!r} must return an nn.Module, got {type(module).__name__}")
        state = torch.get_rng_state()
        with torch.no_grad():
            shape = tuple(module.eval()(torch.zeros(2, inputs)).shape)
        torch.set_rng_state(state)
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's own code raises
        raise ConfigError(f"network {kind!r} fails for {inputs} inputs and {outputs} outputs: {error!r}") from error
    if shape != (2, outputs):
        raise ConfigError(f"network {kind!r} maps rows (2, {inputs}) to {shape}: expected (2, {outputs})")
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.dtype != torch.float32:
            raise ConfigError(f"network {kind!r}: {name} is {value.dtype}, expected float32, which can be stacked")
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"network {kind!r} has no parameters to train")
    return module
