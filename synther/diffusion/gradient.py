"""Compute the loss and its gradient, for one network or for several networks of one shape, each on its own batch.

`ByAutograd` works with any network and any loss. `ByHand` is the fast path for `Network` with the squared error. This
network is a dozen matrix products, and so is its derivative, which is written out in `explicit_gradient`. Each gradient
is written directly to the memory that the optimiser reads, and the elementwise operations before and after a product
are fused with it. A test compares both classes.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from synther import compute
from synther.diffusion.config import NetworkConfig
from synther.diffusion.edm import Loss, Problem, squared_error
from synther.diffusion.networks import DenoisingNetwork, Network
from synther.kernels.dense import dense

_NARROW = 512  # maximum width of a network for which one CPU thread is faster than several
_ALIGN = 64  # elements: each tensor starts at a multiple of this, an address that fast matrix kernels accept


class FlatWeights:
    """The positions of all parameters of a module in one vector (P,).

    With all weights in one vector, gradient clipping, the optimiser step and averaging are one operation each.
    """

    def __init__(self, module: nn.Module) -> None:
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.starts: dict[str, int] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            self.starts[name] = self.size
            self.size += -(-shape.numel() // _ALIGN) * _ALIGN

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of `vector` (P,) with the names and shapes of the parameters. For a stack (S, P), each view has
        an axis S in front."""
        lead = vector.shape[:-1]
        spans = ((name, self.starts[name], shape) for name, shape in self.shapes.items())
        return {name: vector[..., at : at + shape.numel()].view((*lead, *shape)) for name, at, shape in spans}

    def gather(self, module: nn.Module) -> Tensor:
        """Copy the module's weights into a new float32 vector (P,)."""
        parameters = dict(module.named_parameters())
        vector = torch.zeros(self.size, device=next(iter(parameters.values())).device, dtype=torch.float32)
        for name, view in self.views(vector).items():
            view.copy_(parameters[name].detach())
        return vector

    def bind(self, module: nn.Module, vector: Tensor) -> None:
        """Make the module's parameters views of `vector`, so that a change of one changes the other."""
        views = self.views(vector)
        for name, parameter in module.named_parameters():
            parameter.data = views[name]


class LossAndGradient(Protocol):
    """A callable that writes each member's gradient into a row of `gradient` (S, P) and returns the losses (S,).

    It reads the weights from `working` (S, P), which the optimiser keeps up to date. These are the weights themselves
    or a copy in bf16. `inputs`, `condition` and `target` are (S, B, ...); the first two have the dtype of `working`.
    """

    working: Tensor
    gradient: Tensor

    def condition(self, member: int, c_noise: Tensor, given: Tensor | None) -> Tensor:
        """Encode noise levels (N, 1) and conditions (N, K) for all steps of a round. Return (N, ...)."""
        ...

    def __call__(self, inputs: Tensor, condition: Tensor, target: Tensor) -> Tensor: ...


def loss_and_gradient(
    networks: Sequence[DenoisingNetwork], flat: FlatWeights, weights: Tensor, loss: Loss, dtype: torch.dtype
) -> LossAndGradient:
    """Return the fast path for this class of network and this loss if there is one, else `ByAutograd`.

    `weights` (S, P) are float32. Matrix products are computed in `dtype`.
    """
    hashable = isinstance(loss, Hashable)  # a loss may be any callable object
    chosen = FAST_PATHS.get((type(networks[0]), loss), ByAutograd) if hashable else ByAutograd
    made: LossAndGradient = chosen(networks, flat, weights, loss, dtype)
    return made


class ByAutograd:
    """Loss and gradient by autograd, for any network and any loss. Members are computed one after the other.

    For bf16, it uses PyTorch's autocast with float32 weights.
    """

    def __init__(
        self, networks: Sequence[DenoisingNetwork], flat: FlatWeights, weights: Tensor, loss: Loss, dtype: torch.dtype
    ) -> None:
        self.working, self.gradient = weights, torch.zeros_like(weights)
        self._loss, self._short = loss, dtype == torch.bfloat16
        self._networks = [copy.deepcopy(network).requires_grad_(True) for network in networks]
        for network, vector in zip(self._networks, weights, strict=True):
            flat.bind(network, vector)
        self._into = [flat.views(vector) for vector in self.gradient]

    def condition(self, member: int, c_noise: Tensor, given: Tensor | None) -> Tensor:
        return c_noise if given is None else torch.cat([c_noise, given], dim=1)

    def __call__(self, inputs: Tensor, condition: Tensor, target: Tensor) -> Tensor:
        device, losses = inputs.device.type, []
        for member, network in enumerate(self._networks):
            given = condition[member][:, 1:] if network.conditions else None
            problem = Problem(inputs[member], condition[member][:, :1], target[member], given)
            with (
                torch.enable_grad(),
                torch.autocast(device, torch.bfloat16, enabled=self._short, cache_enabled=False),
            ):
                loss = self._loss(network, problem)
            parameters = dict(network.named_parameters())
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(parameters, found, strict=True):
                into = self._into[member][name]
                into.zero_() if gradient is None else into.copy_(gradient)
            losses.append(loss.detach().to(target.dtype))
        return torch.stack(losses)


class ByHand:
    """Loss and gradient of `Network` with the squared error, in `dtype`, without autograd."""

    def __init__(
        self, networks: Sequence[Network], flat: FlatWeights, weights: Tensor, loss: Loss, dtype: torch.dtype
    ) -> None:
        self.working = weights.to(dtype)  # no copy if `dtype` is float32
        self.gradient = torch.zeros_like(self.working)
        self._networks, self._alone = networks, len(networks) == 1
        self._lanes = compute.Lanes(weights.device)
        # With one network the axis of members is dropped, because kernels of single products are faster than batched.
        self._weights, self._into = (
            flat.views(stack[0] if self._alone else stack) for stack in (self.working, self.gradient)
        )

    def condition(self, member: int, c_noise: Tensor, given: Tensor | None) -> Tensor:
        return self._networks[member].features(c_noise, given)

    def __call__(self, inputs: Tensor, condition: Tensor, target: Tensor) -> Tensor:
        given = (condition[0], inputs[0], target[0]) if self._alone else (condition, inputs, target)
        skip = self._networks[0].skip
        return explicit_gradient(self._weights, *given, self._into, skip=skip, lanes=self._lanes).view(-1)


def is_narrow(network: object) -> bool:
    """Return whether the network's products are so small that one CPU thread is faster than several."""
    return isinstance(network, NetworkConfig) and network.width <= _NARROW


FAST_PATHS: dict[tuple[type[DenoisingNetwork], Loss], Any] = {(Network, squared_error): ByHand}
"""Classes like `ByHand`, each for networks of exactly one class and for one loss."""


def explicit_gradient(
    weights: dict[str, Tensor],
    features: Tensor,
    rows: Tensor,
    target: Tensor,
    gradient: dict[str, Tensor],
    *,
    skip: bool,
    lanes: compute.Lanes,
) -> Tensor:
    """Write the gradient of mean((F - target)^2) into `gradient`, and return this loss in the dtype of the target.

    `features` (B, C) encode c_noise and the conditions. `rows` and `target` are (B, D). `features` and `rows` have the
    dtype of the weights. All tensors may have an axis of members in front; then the losses are (S,). The keys of
    `weights` and `gradient` are the parameter names of `Network`, and `skip` is `Network.skip`.
    """
    w, g = weights, gradient
    block_weights, block_biases = w["block_weight"].unbind(-3), w["block_bias"].unbind(-2)
    of_weights, of_biases = g["block_weight"].unbind(-3), g["block_bias"].unbind(-2)
    blocks, lead, width = len(block_weights), rows.shape[:-1], block_weights[0].shape[-1]

    def forwards(x: Tensor, name: str, **options: Any) -> Tensor:
        return dense(x, compute.right_factor(w[f"{name}.weight"]), bias=w[f"{name}.bias"], **options)

    # Forwards.
    with lanes.aside():
        embedded_rows = forwards(rows, "row_in")
        ones = rows.new_ones(*rows.shape[:-2], 1, rows.shape[-2])
    level_hidden = rows.new_empty(*lead, w["level_in.bias"].shape[-1])
    level = forwards(features, "level_in", kind="silu", activated=level_hidden)
    lanes.join()
    embedding = forwards(level_hidden, "level_out", skip=embedded_rows)
    hidden = rows.new_empty(blocks + 1, *lead, width)  # input of each block's product and of row_out: (L + 1, B, W)
    x = forwards(embedding, "widen", activated=hidden[0])
    for block, (weight, bias) in enumerate(zip(block_weights, block_biases, strict=True)):
        right = compute.right_factor(weight)
        x = dense(hidden[block], right, bias=bias, skip=x if skip else None, activated=hidden[block + 1])
    count = target.shape[-2:].numel()
    d_out = forwards(hidden[blocks], "row_out", target=target, scale=2 / count)

    # Backwards. Results that the next layer does not need are computed on side streams.
    d_x = torch.empty_like(hidden)  # gradients of the first block's input and of each block's output: (1 + L, B, W)

    def product(a: Tensor, b: Tensor, out: Tensor) -> None:
        with lanes.aside():
            (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out=out)

    def layer_gradient(d_out: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        product(d_out.mT, x, weight)
        product(ones, d_out, bias.unsqueeze(-2))  # a sum over the batch; as a product it is faster than a reduction

    def block_gradients(first: int, end: int) -> None:
        if rows.ndim == 3:
            for block in range(first, end):
                layer_gradient(d_x[block + 1], hidden[block], of_weights[block], of_biases[block])
        elif first < end:  # one batched product uses a GPU better than several small products
            d_after = d_x[first + 1 : end + 1]
            product(d_after.mT, hidden[first:end], g["block_weight"][first:end])
            product(ones.expand(end - first, -1, -1), d_after, g["block_bias"][first:end].unsqueeze(1))

    layer_gradient(d_out, hidden[blocks], g["row_out.weight"], g["row_out.bias"])
    with lanes.aside():
        loss = d_out.to(target.dtype).square().sum((-2, -1)) * (count / 4)
    dense(d_out, w["row_out.weight"], slope=hidden[blocks], out=d_x[blocks])
    for block in reversed(range(blocks)):
        if block == blocks // 2:
            block_gradients(block, blocks)
        d_after = d_x[block + 1]
        dense(d_after, block_weights[block], slope=hidden[block], skip=d_after if skip else None, out=d_x[block])
    block_gradients(0, blocks // 2)
    layer_gradient(d_x[0], embedding, g["widen.weight"], g["widen.bias"])
    d_embedding = dense(d_x[0], w["widen.weight"])
    layer_gradient(d_embedding, rows, g["row_in.weight"], g["row_in.bias"])
    layer_gradient(d_embedding, level_hidden, g["level_out.weight"], g["level_out.bias"])
    d_level = dense(d_embedding, w["level_out.weight"], kind="silu", slope=level)
    layer_gradient(d_level, features, g["level_in.weight"], g["level_in.bias"])
    lanes.join()
    return loss
