"""The networks of many members at once, with all weights in one tensor.

All classes have the same interface, `Networks`. `Stack` is the fast path for plain perceptrons: each layer is one
batched product, and its derivative is written by hand. `ModuleStack` runs any `nn.Module` for all members with
`torch.func`. `LayerNormStack` is its fast path for perceptrons with layer norm.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.dropout import _DropoutNd as _Dropout

from synther.agents.layers import (
    NormLayers,
    normed_outputs,
    normed_outputs_and_slopes,
    numbers,
    outputs,
    outputs_and_slopes,
)
from synther.agents.networks import Dropout, Initial, NetworkOptions, build_network
from synther.errors import ConfigError, FormatError
from synther.kernels.perceptrons import Perceptron
from synther.schema import check_size, checked

_ALIGN = 32  # elements: the weights of each network start at a multiple of this, for fast matrix kernels


class Networks(ABC):
    """Networks of one kind: one network, or one ensemble of E networks, per member.

    - `weights` is (S, P) or (S, E, P). Each row holds everything that one network learns.
    - `buffers` have the same leading shape. They hold numbers that a pass in training mode changes without gradients,
      for example running statistics. None if the networks have no such numbers.
    - `free` are learned numbers that belong to no layer, for example a log std. They are part of `weights`.
    """

    weights: Tensor
    buffers: Tensor | None = None
    free_size: int
    inputs: int
    perceptron: Perceptron | None = None
    """How these networks run in a few kernels, if they can."""

    @abstractmethod
    def __call__(self, x: Tensor, *, training: bool = True) -> Tensor:
        """Return the outputs (S, B, out), or (S, E, B, out) of ensembles, for inputs x (S, B, in).

        The networks of an ensemble share x, or each has its own with x (S, E, B, in). `training` has an effect only on
        networks with dropout or batch norm.
        """

    @abstractmethod
    def with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (S, E, B), and their gradients with respect to x (S, E, B, in).

        This works for networks with one output and a shared x (S, B, in). Both results are differentiable with respect
        to the weights.
        """

    @property
    @abstractmethod
    def free(self) -> Tensor:
        """The learned numbers that belong to no layer: (S, F), or (S, E, F)."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the JSON values from which `described_networks` builds these networks, given their tensors."""

    @abstractmethod
    def _with(self, weights: Tensor, buffers: Tensor | None) -> Self:
        """Return the same networks with other weights and buffers."""

    @property
    def rows(self) -> Tensor:
        """The weights (N, P) of all networks, without the axes of members and ensembles."""
        return self.weights.view(-1, self.weights.shape[-1])

    def fixed(self) -> Self:
        """Return the same networks without gradients."""
        return self._with(self.weights.detach(), self.buffers)

    def one(self, index: int) -> Self:
        """Return network `index` of each member's ensemble, without gradients."""
        return self._with(self.weights.detach()[:, index], None if self.buffers is None else self.buffers[:, index])

    def member(self, index: int) -> Self:
        """Return a copy of the networks of one member, without gradients."""
        part = slice(index, index + 1)
        weights = self.weights.detach()[part].clone()
        return self._with(weights, None if self.buffers is None else self.buffers[part].clone())

    def chosen(self, subset: Tensor) -> Self:
        """Return copies of the networks with the indices `subset` (S, count) in each member's ensemble."""
        members, ensemble = self.weights.shape[:2]
        first = torch.arange(0, members * ensemble, ensemble, device=subset.device).unsqueeze(1)
        places = (first + subset).flatten()

        def rows(every: Tensor) -> Tensor:
            return every.flatten(0, 1).index_select(0, places).view(*subset.shape, -1)

        return self._with(rows(self.weights), None if self.buffers is None else rows(self.buffers))

    def clone(self) -> Self:
        """Return a copy without gradients, for example as a target network."""
        return self.copy(self.weights.device)

    def copy(self, device: torch.device) -> Self:
        """Return a copy of the current networks on `device`."""
        buffers = None if self.buffers is None else self.buffers.to(device, copy=True)
        return self._with(self.weights.detach().to(device, copy=True), buffers)


class Stack(Networks):
    """Multi-layer perceptrons of one shape, with ReLU between their layers.

    Each row of the weights is `matrices, biases, free, padding`. `networks.MLP` is the same network in plain PyTorch.
    """

    def __init__(self, weights: Tensor, sizes: Sequence[int], free: int = 0) -> None:
        self.weights, self.sizes, self.free_size = weights, tuple(sizes), free
        self.perceptron = Perceptron(self.sizes)
        self.inputs = self.sizes[0]

    @property
    def free(self) -> Tensor:
        start = sum(numbers(self.sizes))
        return self.weights[..., start : start + self.free_size]

    def __call__(self, x: Tensor, *, training: bool = True) -> Tensor:
        every = outputs(self.rows, x.reshape(-1, *x.shape[-2:]), self.sizes)
        return every.view(*self.weights.shape[:-1], *every.shape[1:])

    def with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lead = self.weights.shape[:-1]
        value, slope = outputs_and_slopes(self.rows, x, self.sizes)
        return value.view(*lead, -1), slope.view(*lead, *slope.shape[1:])

    def described(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "free": self.free_size}

    def _with(self, weights: Tensor, buffers: Tensor | None) -> Self:
        return type(self)(weights, self.sizes, self.free_size)


@dataclass(frozen=True)
class NetworkSpec:
    """Describes the module of each network of a `ModuleStack`."""

    kind: str
    """A name in `networks.NETWORKS`."""
    inputs: int
    outputs: int
    options: NetworkOptions

    def build(self) -> nn.Module:
        """Return one module with random weights."""
        return build_network(self.kind, self.inputs, self.outputs, self.options)


class _Flat:
    """The positions of a module's tensors in one row of numbers. Every tensor begins at a multiple of `_ALIGN`."""

    def __init__(self, tensors: Mapping[str, Tensor], free: int = 0) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.starts: dict[str, int] = {}
        self.free_start = 0
        for name, tensor in tensors.items():
            self.starts[name] = self.free_start
            self.free_start += _aligned(tensor.numel())
        self.size = self.free_start + _aligned(free)

    def row(self, tensors: Mapping[str, Tensor], free: Sequence[float] = ()) -> Tensor:
        """Copy the tensors and the free numbers into a new row (size,)."""
        row = torch.zeros(self.size)
        for name, tensor in tensors.items():
            row[self.starts[name] :][: tensor.numel()] = tensor.detach().flatten()
        row[self.free_start :][: len(free)] = torch.tensor(list(free))
        return row

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views of rows (..., size), by the names of the tensors. Each view is (..., *shape)."""
        return {
            name: torch.unflatten(rows[..., start : start + shape.numel()], -1, shape or (1,))
            for (name, shape), start in zip(self.shapes.items(), self.starts.values(), strict=True)
        }

    def in_order(self, rows: Tensor) -> list[Tensor]:
        """Return the same views without names, in the order of the module."""
        return list(self.views(rows).values())


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


class ModuleStack(Networks):
    """Networks of any `nn.Module`. `torch.func` runs them for all members at once."""

    def __init__(self, weights: Tensor, buffers: Tensor | None, spec: NetworkSpec, free: int = 0) -> None:
        self.weights, self.buffers, self.spec, self.free_size = weights, buffers, spec, free
        self.inputs = spec.inputs
        template = spec.build()
        self._parameters = _Flat(dict(template.named_parameters()), free)
        self._buffers = _Flat(dict(template.named_buffers()))
        # One module for each mode, because another thread may evaluate while this one trains.
        self._modules = {True: template.train(), False: copy.deepcopy(template).eval()}
        if weights.shape[-1] != self._parameters.size:
            raise ConfigError(
                f"network {spec.kind!r} has other parameters than the weights of this agent: use the version of the "
                "network with which the agent was trained"
            )

    @property
    def free(self) -> Tensor:
        return self.weights[..., self._parameters.free_start :][..., : self.free_size]

    def __call__(self, x: Tensor, *, training: bool = True) -> Tensor:
        module = self._modules[training]

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(module, (parameters, buffers), (x,))

        ensemble = self.weights.dim() == 3
        separate_inputs = x.dim() == 4
        run: Any = forward
        if ensemble:
            run = vmap(run, in_dims=(0, 0, 0 if separate_inputs else None), randomness="different")
        every: Tensor = vmap(run, randomness="different")(
            self._parameters.views(self.weights),
            {} if self.buffers is None else self._buffers.views(self.buffers),
            x,
        )
        return every

    def with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            each = x.detach().unsqueeze(1).expand(-1, self.weights.shape[1], -1, -1).clone().requires_grad_()
            value = self(each).squeeze(-1)
            (slope,) = torch.autograd.grad(value.sum(), each, create_graph=True)
        return value, slope

    def described(self) -> dict[str, Any]:
        options = self.spec.options
        about = {"width": options.width, "depth": options.depth, "dropout": options.dropout}
        size = {"inputs": self.spec.inputs, "outputs": self.spec.outputs}
        return {"network": self.spec.kind, **size, **about, "free": self.free_size}

    def _with(self, weights: Tensor, buffers: Tensor | None) -> Self:
        same = copy.copy(self)
        same.weights, same.buffers = weights, buffers
        return same

    def clone(self) -> Self:
        """Return a copy without gradients, for example as a target network. Its dropout uses other masks."""
        same = super().clone()
        if same.buffers is not None:
            views = same._buffers.views(same.buffers)
            for name, module in self._modules[True].named_modules():
                if isinstance(module, Dropout):
                    seed = views[f"{name}.seed" if name else "seed"]
                    seed.copy_((seed + 1) % (1 << 24))
        return same


class LayerNormStack(ModuleStack):
    """The fast path for perceptrons with layer norm. Its weights and files have the layout of `ModuleStack`."""

    kinds: ClassVar[dict[str, Literal["before", "after"]]] = {"layer_norm": "before", "layer_norm_last": "after"}
    """Names of the networks, and whether their layer norm comes before or after the ReLU."""

    def __init__(self, weights: Tensor, buffers: Tensor | None, spec: NetworkSpec, free: int = 0) -> None:
        super().__init__(weights, buffers, spec, free)
        hidden = (spec.options.width,) * spec.options.depth
        self.perceptron = Perceptron((spec.inputs, *hidden, spec.outputs), self.kinds[spec.kind])
        self._layers = NormLayers(self._parameters.in_order, self.perceptron)

    def __call__(self, x: Tensor, *, training: bool = True) -> Tensor:
        every = normed_outputs(self.rows, x.reshape(-1, *x.shape[-2:]), self._layers)
        return every.view(*self.weights.shape[:-1], *every.shape[1:])

    def with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lead = self.weights.shape[:-1]
        value, slope = normed_outputs_and_slopes(self.rows, x, self._layers)
        return value.view(*lead, -1), slope.view(*lead, *slope.shape[1:])


def stack_modules(weights: Tensor, buffers: Tensor | None, spec: NetworkSpec, free: int = 0) -> ModuleStack:
    """Return networks of the kind `spec`, on the fast path if there is one for this kind."""
    fast = spec.kind in LayerNormStack.kinds and not spec.options.dropout
    return (LayerNormStack if fast else ModuleStack)(weights, buffers, spec, free)


def draw_modules(
    sources: Sequence[torch.Generator],
    spec: NetworkSpec,
    device: torch.device,
    *,
    ensemble: int | None = None,
    free: Sequence[float] = (),
) -> ModuleStack:
    """Return trainable networks of the kind `spec`.

    The initial weights of each member are drawn from its own generator in `sources` (on the CPU).
    """
    weights, buffers = [], []
    with torch.random.fork_rng(devices=[]):
        _check_stacking(spec)
        for source in sources:
            torch.default_generator.set_state(source.get_state())
            for _ in range(ensemble or 1):
                module = spec.build()
                parameters, module_buffers = dict(module.named_parameters()), dict(module.named_buffers())
                weights.append(_Flat(parameters, len(free)).row(parameters, free))
                buffers.append(_Flat(module_buffers).row(module_buffers))
            source.set_state(torch.default_generator.get_state())
    lead = (len(sources),) if ensemble is None else (len(sources), ensemble)
    if len({(len(row), len(kept)) for row, kept in zip(weights, buffers, strict=True)}) > 1:
        raise ConfigError(
            f"network {spec.kind!r} has a different number of parameters each time it is built: build it in the same "
            "way every time"
        )
    rows = torch.stack(weights).view(*lead, -1).to(device).requires_grad_()
    kept = torch.stack(buffers).view(*lead, -1).to(device) if buffers[0].numel() else None
    return stack_modules(rows, kept, replace(spec, options=replace(spec.options, initial=None)), len(free))


def _check_stacking(spec: NetworkSpec) -> None:
    """Raise an error if `torch.func` cannot run several such networks at once, in training."""
    module = spec.build().train()
    for part in module.modules():
        if isinstance(part, _Dropout) and part.p:
            raise ConfigError(
                f"network {spec.kind!r} uses {type(part).__name__} of torch.nn, whose random numbers a resumed run "
                "would not repeat: use synther.agents.networks.Dropout"
            )
    parameters, buffers = (
        {name: torch.stack([value.detach()] * 2) for name, value in named}
        for named in (module.named_parameters(), module.named_buffers())
    )
    run = vmap(lambda *state: functional_call(module, state[:2], (state[2],)), randomness="different")
    try:
        run(parameters, buffers, torch.zeros(2, 3, spec.inputs))
    except Exception as error:  # the code of a user can raise any exception
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"network {spec.kind!r} cannot be trained for several members at once ({reason}): do not branch on the "
            "values of tensors, and see docs/agents.md for what else a network must not do"
        ) from error


class _Perceptrons(TypedDict):
    sizes: tuple[int, ...]
    free: int


class _Modules(TypedDict):
    network: str
    inputs: int
    outputs: int
    width: int
    depth: int
    dropout: float
    free: int


_DEEPEST = 10_000  # maximum number of layers; a file with more is refused as damaged


def described_networks(weights: Tensor, buffers: Tensor | None, about: dict[str, Any]) -> Networks:
    """Build networks from their tensors and their description `about`, the result of `Networks.described`."""
    if "network" not in about:
        plain = checked(about, _Perceptrons, "policy")
        sizes, free = plain["sizes"], plain["free"]
        if len(sizes) < 2 or min(*sizes, free) < 0 or sum(numbers(sizes)) + free > weights.shape[-1]:
            raise FormatError(f"policy.sizes is {sizes}: expected the layer sizes of {weights.shape[-1]:,} weights")
        return Stack(weights, sizes, free)
    other = checked(about, _Modules, "policy")
    width, depth, inputs, outputs = (other[name] for name in ("width", "depth", "inputs", "outputs"))
    if min(width, depth, inputs, outputs) < 0 or depth > _DEEPEST:
        raise FormatError(
            f"policy: expected a network with sizes of at least 0 and at most {_DEEPEST:,} layers, got {depth} layers "
            f"of {width} units with {inputs} inputs and {outputs} outputs"
        )
    check_size(4 * width * (inputs + depth * width + outputs), weights.nbytes)  # before the modules are built
    spec = NetworkSpec(other["network"], inputs, outputs, NetworkOptions(width, depth, other["dropout"]))
    return stack_modules(weights, buffers, spec, other["free"])


def draw_stack(
    sources: Sequence[torch.Generator],
    sizes: Sequence[int],
    device: torch.device,
    *,
    ensemble: int | None = None,
    initial: Initial | None = None,
    free: Sequence[float] = (),
) -> Stack:
    """Return a trainable stack of perceptrons with the layer sizes `sizes`.

    The initial weights of each member are drawn from its own generator in `sources` (on the CPU).
    """
    initial = initial or Initial()
    used = sum(numbers(sizes)) + len(free)
    weights = torch.zeros(len(sources), ensemble or 1, -(-used // _ALIGN) * _ALIGN)
    layers = len(sizes) - 1
    for member, source in enumerate(sources):
        for network in range(ensemble or 1):
            drawn = [initial.layer(sizes[i], sizes[i + 1], i == layers - 1, source) for i in range(layers)]
            parts = [w.flatten() for w, _ in drawn] + [b for _, b in drawn] + [torch.tensor(list(free))]
            weights[member, network, :used] = torch.cat(parts)
    if ensemble is None:
        weights = weights.squeeze(1)
    return Stack(weights.to(device).requires_grad_(), sizes, len(free))
