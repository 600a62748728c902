"""Encoder and trunk, against PyTorch's own layers and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from synther.agents.algorithm import Shape
from synther.errors import DataError
from synther.pixels.encoder import FEATURES, Encoder, draw_encoder, draw_trunk, encoded_size

from .pictures import CPU

FRAME = (6, 19, 22)


def layers(encoder: Encoder, member: int) -> nn.Sequential:
    """One member's encoder of PyTorch's modules."""
    row, at, parts, inputs = encoder.weights[member].detach(), 0, [], encoder.frame[0]
    for stride in (2, 1, 1, 1):
        conv, count = nn.Conv2d(inputs, 32, 3, stride), 32 * 9 * inputs
        conv.weight.data = row[at : at + count].view(32, 3, 3, inputs).permute(0, 3, 1, 2)
        conv.bias.data = row[at + count : at + count + 32]
        at, inputs = at + count + 32, 32
        parts += [conv, nn.ReLU()]
    assert at == len(row)
    return nn.Sequential(*parts)


def test_an_encoder_is_its_layers(generator):
    encoder = draw_encoder([0, 1], 7, FRAME, CPU)
    encoder.weights.data += 0.05 * torch.randn(encoder.weights.shape, generator=generator)  # biases are not 0 then
    x = torch.rand(2, 3, *FRAME, generator=generator) - 0.5
    got = encoder(x)
    for member in range(2):
        expected = layers(encoder, member)(x[member]).permute(0, 2, 3, 1).flatten(1)
        torch.testing.assert_close(got[member], expected)
    assert got.shape == (2, 3, encoder.features)


def test_shapes_at_84_pixels():
    assert encoded_size((9, 84, 84)) == (32, 35, 35)
    encoder = draw_encoder([0], 7, (9, 84, 84), CPU)
    assert encoder.weights.shape == (1, 9 * 9 * 32 + 32 + 3 * (32 * 9 * 32 + 32))
    assert encoder(torch.zeros(1, 1, 9, 84, 84)).shape == (1, 1, 39_200)
    assert encoded_size((3, 15, 15)) == (32, 1, 1)


@pytest.mark.parametrize("frame", [(9, 14, 84), (9, 84, 14)])
def test_frames_that_are_too_small_are_refused(frame):
    with pytest.raises(DataError, match="at least 15 x 15 pixels, got"):
        draw_encoder([0], 7, frame, CPU)


def test_first_weights_are_orthogonal():
    encoder = draw_encoder([0, 1], 7, FRAME, CPU)
    for conv in list(layers(encoder, 1))[::2]:
        matrix = conv.weight.flatten(1)
        torch.testing.assert_close(matrix @ matrix.t(), 2 * torch.eye(32), atol=1e-5, rtol=0)
        assert torch.equal(conv.bias, torch.zeros(32))


def test_members_follow_from_their_seeds_alone(generator):
    together, alone = draw_encoder([5, 6], 7, FRAME, CPU), draw_encoder([6], 7, FRAME, CPU)
    assert torch.equal(together.weights[1:], alone.weights)
    assert not torch.equal(together.weights[0], together.weights[1])
    x = torch.rand(2, 4, *FRAME, generator=generator)
    assert torch.equal(together(x)[1:], alone(x[1:]))


def test_a_trunk_is_linear_then_norm_then_tanh(generator):
    trunk = draw_trunk(Shape(FEATURES, 2, (0, 1), CPU), 7, 96)
    trunk.weights.data += 0.1 * torch.randn(trunk.weights.shape, generator=generator)
    x = torch.randn(2, 5, 96, generator=generator)
    got = trunk(x)
    for member in range(2):
        row = trunk.weights[member].detach().double().numpy()
        matrix, rest = row[: 96 * FEATURES].reshape(96, FEATURES), row[96 * FEATURES :]
        bias, gain, shift = (rest[i * FEATURES : (i + 1) * FEATURES] for i in range(3))
        y = x[member].double().numpy() @ matrix + bias
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got[member].detach().numpy(), np.tanh(y * gain + shift), atol=1e-5)


def test_first_weights_of_a_trunk():
    trunk = draw_trunk(Shape(FEATURES, 2, (0, 1), CPU), 7, 96)
    matrix = trunk.weights[1, : 96 * FEATURES].detach().view(96, FEATURES)
    torch.testing.assert_close(matrix.t() @ matrix, torch.eye(FEATURES), atol=1e-5, rtol=0)
    rest = trunk.weights[1, 96 * FEATURES :].detach()
    assert torch.equal(rest[: 3 * FEATURES], torch.tensor([0.0, 1.0, 0.0]).repeat_interleave(FEATURES))


@pytest.mark.parametrize("inputs", [32, 39_200])
def test_a_product_in_parts_is_the_product(inputs, generator):
    trunk = draw_trunk(Shape(FEATURES, 2, (0,), CPU), 7, inputs)
    assert trunk._parts > 1
    assert inputs % (8 * trunk._parts) == 0
    x, matrix = torch.randn(1, 2, inputs, generator=generator), trunk.weights[0, : inputs * FEATURES].detach()
    y = nn.functional.layer_norm(x[0] @ matrix.view(inputs, FEATURES), (FEATURES,))
    torch.testing.assert_close(trunk(x)[0].detach(), y.tanh(), atol=1e-5, rtol=1e-4)
