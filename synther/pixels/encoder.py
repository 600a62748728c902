"""The encoders of pixel agents (DrQ-v2, Yarats et al. 2022). Each member has its own encoder.

`Encoder` is the convolutional part: four 3 x 3 layers, the first one with stride 2. A `Trunk` reduces its output to a
few features with a linear layer, layer norm and tanh. `PixelEncoder` has frozen copies of both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from synther import compute
from synther.agents.algorithm import WEIGHTS, Shape
from synther.agents.drq_bc import Orthonormal
from synther.agents.networks import Initial
from synther.agents.policy import read
from synther.agents.stacked import Stack
from synther.errors import ConfigError, DataError, FormatError

Frame = tuple[int, int, int]
"""Channels, height and width of an observation."""

_CHANNELS = 32
"""Output channels of each convolution."""
_STRIDES = (2, 1, 1, 1)
_KERNEL = 3
_SMALLEST = 15
"""Smallest side of a frame in pixels for which the output has at least one feature."""


class Encoder:
    """The convolutional encoders of all members. `weights` is (S, P): each row has all weights of one encoder.

    A row contains each layer's kernel (out, 3, 3, in) followed by its biases. Weights are float32. Products are
    computed in the dtype of the input.
    """

    def __init__(self, weights: Tensor, frame: Frame) -> None:
        self.weights, self.frame = weights, frame

    @property
    def features(self) -> int:
        """Number of features of an encoded observation: 39,200 for 84 x 84 pixels."""
        return math.prod(encoded_size(self.frame))

    def __call__(self, x: Tensor) -> Tensor:
        """Encode observations (S, B, C, H, W) in [-1/2, 1/2] to features (S, B, F), flattened with channels last.

        Members are convolved one after the other, because grouped convolutions are slower on a GPU.
        """
        rows = self.weights.to(x.dtype)
        return torch.stack([self._one(row, observations) for row, observations in zip(rows, x, strict=True)])

    def _one(self, row: Tensor, x: Tensor) -> Tensor:
        """Encode the observations (B, C, H, W) of one member with the weights `row` (P,)."""
        parts = torch.split(row, _numbers(self.frame[0]))
        for stride, kernel, bias in zip(_STRIDES, parts[::2], parts[1::2], strict=True):
            kernel = kernel.view(_CHANNELS, _KERNEL, _KERNEL, -1).permute(0, 3, 1, 2)  # channels last, like the frames
            x = functional.relu(functional.conv2d(x, kernel, bias, stride))
        return x.permute(0, 2, 3, 1).flatten(1)

    def copy(self, device: torch.device) -> Encoder:
        """Return a copy with the current weights on `device`."""
        return Encoder(self.weights.detach().to(device, copy=True), self.frame)


def encoded_size(frame: Frame) -> Frame:
    """Return channels, height and width of an encoded observation: 32, 35 and 35 for 84 x 84 pixels."""
    sides = []
    for side in frame[1:]:
        if side < _SMALLEST:
            raise DataError(
                f"expected frames of at least {_SMALLEST} x {_SMALLEST} pixels, got {frame[1]} x {frame[2]}"
            )
        for stride in _STRIDES:
            side = (side - _KERNEL) // stride + 1
        sides.append(side)
    return _CHANNELS, sides[0], sides[1]


def draw_encoder(seeds: Sequence[int], key: int, frame: Frame, device: torch.device) -> Encoder:
    """Create a trainable encoder per member.

    The initial weights are orthogonal with gain sqrt(2). They are drawn from the random stream (seed, key).
    """
    encoded_size(frame)
    rows = []
    for seed in seeds:
        source, inputs, parts = compute.generator(torch.device("cpu"), seed, WEIGHTS, key), frame[0], []
        for _ in _STRIDES:
            kernel, biases = Initial(orthogonal=True).layer(inputs * _KERNEL**2, _CHANNELS, False, source)
            parts += [kernel.t().flatten(), biases]
            inputs = _CHANNELS
        rows.append(torch.cat(parts))
    return Encoder(torch.stack(rows).to(device).requires_grad_(), frame)


def _numbers(channels: int) -> list[int]:
    """Return the sizes of the kernels and biases in a row of weights, in order."""
    inputs = (channels, *(_CHANNELS,) * (len(_STRIDES) - 1))
    return [count for each in inputs for count in (_CHANNELS * _KERNEL**2 * each, _CHANNELS)]


FEATURES = 50
"""Number of features of a trunk's output."""

_MOST_PARTS = 64
"""Maximum number of parts in which `Trunk` computes its matrix product."""


class Trunk:
    """A linear layer, layer norm and tanh for each member.

    `stack` contains each member's linear layer (F, features). The free numbers of `stack` are gain and shift of the
    layer norm.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.inputs, self.features = stack.sizes
        # Each part has at least 16 bytes in the narrowest dtype, because a GPU reads 16 bytes at once.
        self._parts = max(parts for parts in range(1, _MOST_PARTS + 1) if self.inputs // 8 % parts == 0)

    @property
    def weights(self) -> Tensor:
        return self.stack.weights

    def __call__(self, x: Tensor) -> Tensor:
        """Reduce encoded observations (S, B, F) to features (S, B, features) in [-1, 1], as float32."""
        used = self.inputs * self.features
        sizes = [used, self.features, self.features, self.features]
        sizes.append(self.weights.shape[1] - sum(sizes))
        matrix, bias, gain, shift, _ = torch.split(self.weights, sizes, 1)
        matrix = matrix.view(-1, self._parts, self.inputs // self._parts, self.features).to(x.dtype)
        products = torch.stack([self._product(encoded, own) for encoded, own in zip(x, matrix, strict=True)])
        y = functional.layer_norm(products + bias.unsqueeze(1), (self.features,))
        return torch.tanh(y * gain.unsqueeze(1) + shift.unsqueeze(1))

    def _product(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return the product of x (B, F) and one member's matrix, given in parts.

        A product with a long inner dimension and few columns uses only few units of a GPU. So it is computed in parts,
        which are summed in float32.
        """
        return torch.bmm(torch.unflatten(x, 1, matrix.shape[:2]).transpose(0, 1), matrix).sum(0, dtype=torch.float32)

    def fixed(self) -> Trunk:
        """Return a trunk that shares these weights, without gradients."""
        return Trunk(self.stack.fixed())

    def clone(self) -> Trunk:
        """Return a copy without gradients, for example as a target network."""
        return Trunk(self.stack.clone())

    def copy(self, device: torch.device) -> Trunk:
        """Return a copy with the current weights on `device`."""
        return Trunk(self.stack.copy(device))


def draw_trunk(shape: Shape, key: int, inputs: int) -> Trunk:
    """Create a trainable trunk per member. The initial weights are drawn from the random stream (seed, key)."""
    free = (*[1.0] * FEATURES, *[0.0] * FEATURES)
    return Trunk(shape.stack(key, (inputs, FEATURES), initial=Orthonormal(), free=free))


TrunkName = Literal["actor", "critic"]
Features = Literal["both", "actor", "critic"]
"""Selects the trunks to use. With "both", the actor's features come first."""


@dataclass(frozen=True)
class PixelEncoder:
    """The frozen encoders and trunks of all members. Use them with `features(observations, ["actor"])`."""

    encoder: Encoder
    trunks: dict[TrunkName, Trunk]
    """The actor's trunk and, if the agent has one, the critic's."""
    seeds: tuple[int, ...]
    """One seed per member."""
    nstep: int
    discount: float
    """N-step horizon and discount of the agent's training."""

    @property
    def device(self) -> torch.device:
        return self.encoder.weights.device

    def features(self, observations: Tensor, names: Iterable[TrunkName]) -> Tensor:
        """Return the features (S, B, features) of observations (S, B, C, H, W), from the named trunks in order."""
        encoded = self.encoder(observations)
        return torch.cat([self.trunk(name)(encoded) for name in names], -1)

    def trunk(self, name: TrunkName) -> Trunk:
        """Return a trunk by its name, or raise an error if the agent does not have it."""
        if name not in self.trunks:
            raise ConfigError(f"this agent has no {name} trunk; it has: {', '.join(self.trunks)}")
        return self.trunks[name]


def load_pixel_encoder(path: str | os.PathLike[str], device: torch.device | None = None) -> PixelEncoder:
    """Read encoders and trunks from an agent's file. Default device: CPU."""
    described, _ = read(path, "actor", pixels=True)
    if "trunks" not in described:
        raise FormatError(f"{path} holds only a policy: expected the file of a whole agent")
    try:
        names: list[TrunkName] = described["trunks"]
        _, tensors = read(path, "encoder", *(f"{name}_trunk" for name in names))
        frame, config, seeds = described["frame"], described["config"], tuple(described["seeds"])
        nstep, discount = config["nstep"], config["discount"]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path} is a damaged agent file ({error!r} of its encoder): train the agent again") from None
    device = device or torch.device("cpu")
    encoder = Encoder(tensors["encoder"].to(device), tuple(frame))
    trunks = {name: trunk_of(tensors[f"{name}_trunk"].to(device), encoder) for name in names}
    return PixelEncoder(encoder, trunks, seeds, nstep, discount)


def trunk_of(weights: Tensor, encoder: Encoder) -> Trunk:
    """Create a trunk from its weights, with the output of `encoder` as input."""
    return Trunk(Stack(weights, (encoder.features, FEATURES), 2 * FEATURES))
