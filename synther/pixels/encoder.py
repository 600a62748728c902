"""DrQ-v2's convolutional encoder (Yarats et al. 2022), one a member: four layers of 3 x 3, the first with stride 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from synther import compute
from synther.agents.algorithm import WEIGHTS
from synther.agents.stacked import Initial
from synther.errors import DataError

Frame = tuple[int, int, int]
"""Channels, height and width of an observation."""

_CHANNELS = 32
_STRIDES = (2, 1, 1, 1)
_KERNEL = 3
_SMALLEST = 15
"""Pixels of a side from which a feature is left."""


class Encoder:
    """`weights` is (S, P): a row is one whole encoder, each layer's kernel (out, 3, 3, in) and then its biases.

    Products are made in the type of what is encoded, from weights that are float32.
    """

    def __init__(self, weights: Tensor, frame: Frame) -> None:
        self.weights, self.frame = weights, frame

    @property
    def features(self) -> int:
        """How many numbers an observation becomes: 39,200 of one of 84 x 84 pixels."""
        return math.prod(encoded_size(self.frame))

    def __call__(self, x: Tensor) -> Tensor:
        """Observations (S, B, C, H, W), within [-1/2, 1/2], to features (S, B, F): row by row, channels last.

        A convolution for each member by itself: those that a GPU knows for many networks at once are slower.
        """
        rows = self.weights.to(x.dtype)
        return torch.stack([self._one(row, seen) for row, seen in zip(rows, x, strict=True)])

    def _one(self, row: Tensor, x: Tensor) -> Tensor:
        parts = torch.split(row, _numbers(self.frame[0]))
        for stride, kernel, bias in zip(_STRIDES, parts[::2], parts[1::2], strict=True):
            kernel = kernel.view(_CHANNELS, _KERNEL, _KERNEL, -1).permute(0, 3, 1, 2)  # laid out as the frames are
            x = functional.relu(functional.conv2d(x, kernel, bias, stride))
        return x.permute(0, 2, 3, 1).flatten(1)

    def copy(self, device: torch.device) -> Encoder:
        """As it is now, on `device`."""
        return Encoder(self.weights.detach().to(device, copy=True), self.frame)


def encoded_size(frame: Frame) -> Frame:
    """Channels, height and width of what is encoded: 32, 35 and 35 of 84 x 84 pixels."""
    sides = []
    for side in frame[1:]:
        if side < _SMALLEST:
            raise DataError(
                f"expected frames of {_SMALLEST} x {_SMALLEST} pixels at least, got {frame[1]} x {frame[2]}"
            )
        for stride in _STRIDES:
            side = (side - _KERNEL) // stride + 1
        sides.append(side)
    return _CHANNELS, sides[0], sides[1]


def draw_encoder(seeds: Sequence[int], key: int, frame: Frame, device: torch.device) -> Encoder:
    """A trainable encoder for every member; its first weights, orthogonal of gain sqrt(2), follow from (seed, key)."""
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
    """How many numbers each kernel and each bias has, in the order of a row."""
    inputs = (channels, *(_CHANNELS,) * (len(_STRIDES) - 1))
    return [count for each in inputs for count in (_CHANNELS * _KERNEL**2 * each, _CHANNELS)]
