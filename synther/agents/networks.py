"""Networks of agents in plain PyTorch. Each class is one network; `stacked.py` runs it for all members at once.

A network is chosen by name: `critic_network="layer_norm"`. To add another one, register a function that returns an
`nn.Module`:

    def wide(inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 1024), nn.ELU(), nn.Linear(1024, outputs))

    NETWORKS.register("wide", NetworkFactory(wide))

A module must run under `torch.func.vmap`, so it cannot branch on the values of tensors. It must take random numbers
from `Dropout` below, and keep running statistics in buffers, as `BatchNorm` below does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from synther.errors import ConfigError
from synther.registry import Registry


@dataclass(frozen=True)
class Initial:
    """Initial weights of a network. By default, they are those of PyTorch's linear layer."""

    orthogonal: bool = False
    """Use orthogonal matrices with gain sqrt(2), and zero biases."""
    hidden_bias: float | None = None
    """Value of all biases in hidden layers."""
    last: float | None = None
    """Bound of the uniform weights and biases of the last layer."""
    by_outputs: bool = False
    """Use the bound 1 / sqrt(outputs) instead of 1 / sqrt(inputs) for the uniform weights of a layer."""

    def layer(self, inputs: int, outputs: int, is_last: bool, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the weights (inputs, outputs) and biases (outputs,) of a layer."""
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
    """Draw a random matrix (inputs, outputs) that is orthonormal along its shorter side (Saxe et al. 2014)."""
    long, short = max(inputs, outputs), min(inputs, outputs)
    q, r = torch.linalg.qr(torch.randn(long, short, generator=source))
    q.mul_(r.diagonal().sign())
    matrix: Tensor = q if inputs >= outputs else q.t()
    return matrix


@dataclass(frozen=True)
class NetworkOptions:
    """Options from which a network is built, besides the numbers of its inputs and outputs."""

    width: int = 256
    """Number of units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers, or of residual blocks."""
    dropout: float = 0.0
    """Dropout rate."""
    initial: Initial | None = None
    """Initial weights of linear layers that the algorithm prescribes. None: those of PyTorch."""

    def linear(self, inputs: int, outputs: int, *, is_last: bool = False) -> nn.Linear:
        """Return a linear layer with the initial weights `initial`."""
        layer = nn.Linear(inputs, outputs)
        if self.initial is not None:
            weight, bias = self.initial.layer(inputs, outputs, is_last, torch.default_generator)
            with torch.no_grad():
                layer.weight.copy_(weight.t())
                layer.bias.copy_(bias)
        return layer


@dataclass(frozen=True)
class NetworkFactory:
    """A kind of network: an entry of `NETWORKS`."""

    build: Callable[[int, int, NetworkOptions], nn.Module]
    """A function build(inputs, outputs, options) that returns the module."""


class MLP(nn.Sequential):
    """Linear layers with ReLU between them.

    With `norm`, a hidden layer is linear, layer norm, ReLU (RLPD, DroQ). With `norm_last`, it is linear, ReLU, layer
    norm (ReBRAC). Dropout comes directly after the linear layer, as in DroQ.
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
    """The network of CrossQ (Bhatt et al. 2024), with batch norm of the inputs and after every ReLU."""

    def __init__(self, inputs: int, outputs: int, options: NetworkOptions) -> None:
        layers: list[nn.Module] = [BatchNorm(inputs)]
        size = inputs
        for _ in range(options.depth):
            layers += [options.linear(size, options.width), nn.ReLU(), BatchNorm(options.width)]
            size = options.width
        super().__init__(*layers, options.linear(size, outputs, is_last=True))


class SimBa(nn.Module):
    """The network of SimBa (Lee et al. 2025): residual blocks with layer norm, between two linear layers."""

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
    """Layer norm, a linear layer to four times the width, ReLU, and a linear layer back to the width."""

    def __init__(self, width: int) -> None:
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (up, down):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        super().__init__(nn.LayerNorm(width, eps=1e-6), up, nn.ReLU(), down)


class BatchNorm(nn.Module):
    """Batch renormalisation (Ioffe 2017) of rows (B, size), with the constants of CrossQ.

    In the first `warmup` passes, it is plain batch norm. In evaluation mode, it uses the running mean and variance.
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
        # Correct towards the running statistics, without a gradient. During the warm-up there is no correction.
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
    """Dropout with a mask that depends only on the network's own seed and the number of the pass.

    So a member trains the same alone as together with others, and a resumed training run gives the same result as an
    uninterrupted one. The mask is a hash of (seed, pass, position).
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
    """Hash each integer (int64) to a well-mixed integer in [0, 2^31)."""
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0x7FFFFFFF
    return x ^ (x >> 16)


def _kind(**how: Any) -> Callable[[int, int, NetworkOptions], nn.Module]:
    """Return a function that builds an `MLP` with these arguments."""
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
"""The kinds of networks, by name."""


WITHOUT_DROPOUT = ("batch_norm", "simba")
"""Networks that have no dropout."""


def build_network(kind: str, inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
    """Build a network of the registered `kind`.

    Raise an error if it does not map rows of `inputs` columns to rows of `outputs` columns, or if it cannot be stacked.
    """
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
    except Exception as error:  # the code of a user can raise any exception
        raise ConfigError(f"network {kind!r} fails for {inputs} inputs and {outputs} outputs: {error!r}") from error
    if shape != (2, outputs):
        raise ConfigError(f"network {kind!r} maps rows (2, {inputs}) to {shape}: expected (2, {outputs})")
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            raise ConfigError(
                f"network {kind!r} uses {type(part).__name__} of torch.nn, which cannot be stacked: use "
                "synther.agents.networks.BatchNorm"
            )
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.dtype != torch.float32:
            raise ConfigError(f"network {kind!r}: {name} is {value.dtype}, expected float32, which can be stacked")
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"network {kind!r} has no parameters to train")
    return module
