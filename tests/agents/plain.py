"""An algorithm's members one by one, in PyTorch's own layers and optimisers, and algorithms in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from synther.agents.adam import Adam
from synther.agents.algorithm import AgentConfig, Algorithm, Noise, Shape
from synther.agents.rows import Batch
from synther.agents.stacked import ModuleStack, Networks


class Network(nn.Module):
    """What a row of a stack is: linear layers with ReLU between them, and free numbers."""

    def __init__(self, row: Tensor, sizes: tuple[int, ...], free: int = 0) -> None:
        super().__init__()
        shapes = list(pairwise(sizes))
        at, bias_at = 0, sum(inputs * outputs for inputs, outputs in shapes)
        layers = []
        for inputs, outputs in shapes:
            linear = nn.Linear(inputs, outputs)
            linear.weight.data = row[at : at + inputs * outputs].detach().view(inputs, outputs).T.clone()
            linear.bias.data = row[bias_at : bias_at + outputs].detach().clone()
            layers.append(linear)
            at, bias_at = at + inputs * outputs, bias_at + outputs
        self.layers = nn.ModuleList(layers)
        self.free = nn.Parameter(row[bias_at : bias_at + free].detach().clone())

    def forward(self, *inputs: Tensor) -> Tensor:
        """Of inputs side by side, (B, out)."""
        x = torch.cat(inputs, -1)
        for layer in self.layers[:-1]:
            x = relu(layer(x))
        return self.layers[-1](x)

    def row(self) -> Tensor:
        parts = [layer.weight.T.flatten() for layer in self.layers] + [layer.bias for layer in self.layers]
        return torch.cat([*parts, self.free]).detach()


class Modular(nn.Module):
    """One network of a `ModuleStack`."""

    def __init__(self, stack: ModuleStack, *place: int) -> None:
        super().__init__()
        self.module = stack.spec.build().double().train()
        views = stack._parameters.views(stack.weights.detach())
        if stack.buffers is not None:
            views |= stack._buffers.views(stack.buffers)
        self.module.load_state_dict({name: view[place].clone() for name, view in views.items()})
        self.flat = stack._parameters

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(torch.cat(inputs, -1))

    def row(self) -> Tensor:
        parameters = {name: value.detach() for name, value in self.module.named_parameters()}
        row = torch.zeros(self.flat.size, dtype=torch.float64)
        for name, view in self.flat.views(row).items():
            view.copy_(parameters[name])
        return row


def used(stack: ModuleStack) -> Tensor:
    """1 where a row holds a parameter, 0 where it holds padding."""
    row = torch.zeros(stack._parameters.size)
    for view in stack._parameters.views(row).values():
        view.fill_(1)
    return row


def networks(stack: Networks, member: int) -> nn.Module:
    """A member's network, or the list of its ensemble."""
    rows = stack.weights[member]
    if isinstance(stack, ModuleStack):
        if rows.dim() == 1:
            return Modular(stack, member)
        return nn.ModuleList(Modular(stack, member, number) for number in range(len(rows)))
    if rows.dim() == 1:
        return Network(rows, stack.sizes, stack.free_size)
    return nn.ModuleList(Network(row, stack.sizes, stack.free_size) for row in rows)


class Plain:
    """A member of an algorithm, under the names that the algorithm has for its parts."""

    def __init__(self, algorithm: Algorithm, config: AgentConfig, member: int) -> None:
        self.config, parts = config, vars(algorithm).items()
        slow = getattr(config, "policy_rate", config.learning_rate)
        for name, part in parts:
            if isinstance(part, Networks):
                setattr(self, name, networks(part, member))
            elif isinstance(part, Tensor):
                setattr(self, name, part[member].clone().requires_grad_())
        for name, part in parts:
            if isinstance(part, Adam):
                stem = name.removesuffix("_adam") if name != "adam" else "actor"
                own = getattr(self, stem) if hasattr(self, stem) else getattr(self, f"log_{stem}")
                weights = [own] if isinstance(own, Tensor) else list(own.parameters())
                rate = slow if stem in ("actor", "temperature") else config.learning_rate
                decay = config.weight_decay if stem != "temperature" and part.decay else 0.0
                setattr(self, name, torch.optim.AdamW(weights, rate, part.betas, weight_decay=decay))


def in_float64(algorithm: Algorithm) -> Algorithm:
    """The same algorithm in float64, its optimisers too, and with targets that differ from what they follow."""
    moved: dict[int, Tensor] = {}
    parts = list(vars(algorithm).items())
    for name, part in parts:
        if isinstance(part, Networks):
            trained = part.weights.requires_grad
            weights = part.weights.detach().double() * (1.0 if trained else 1.25)
            moved[id(part.weights)] = weights.requires_grad_(trained)
            buffers = None if part.buffers is None else part.buffers.double()
            setattr(algorithm, name, part._with(weights, buffers))
        elif isinstance(part, Tensor):
            moved[id(part)] = part.double()
            setattr(algorithm, name, moved[id(part)])
    for name, part in parts:
        if isinstance(part, Adam):
            adam = Adam(moved[id(part.weights)], part.rate.item(), decay=part.decay, betas=part.betas)
            adam.rate, adam.count = adam.rate.double(), adam.count.double()
            setattr(algorithm, name, adam)
    return algorithm


def drawn(algorithm: Algorithm, shape: Shape, rows: int, generator: torch.Generator) -> tuple[Batch, Noise]:
    """So many rows for an update of every member, and its noise, in float64."""
    members, size = len(shape.seeds), shape.observation

    def normal(*size: int) -> Tensor:
        return torch.randn(members, rows, *size, generator=generator, dtype=torch.float64)

    here, there, action = normal(size), normal(size), normal(shape.action).tanh()
    if shape.choices is not None:
        action = torch.randint(shape.choices, action.shape, generator=generator).double() * 2 / (shape.choices - 1) - 1
    terminal = (torch.rand(members, rows, generator=generator) < 0.3).double()
    batch = Batch(here, action, normal(), there, terminal, torch.cat([here, action], -1))
    if algorithm.needs_next_action:
        known = (torch.rand(members, rows, generator=generator) < 0.7).double()
        batch = batch._replace(next_action=normal(shape.action).tanh(), next_known=known)
    uniform = torch.rand(members, rows, algorithm.uniforms, generator=generator, dtype=torch.float64) * 2 - 1
    return batch, Noise(normal(algorithm.normals), uniform)
