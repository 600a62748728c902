"""Encoder and trunk, against PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from synther.agents.algorithm import Shape
from synther.errors import DataError
from synther.pixels.encoder import FEATURES, draw_encoder, draw_trunk, encoded_size

from .pictures import CPU
from .plain import encoded, trunk

FRAME = (6, 19, 22)


def test_an_encoder_is_four_convolutions_and_begins_orthogonal(generator):
    encoder = draw_encoder([0, 1], 7, FRAME, CPU)
    row = encoder.weights[1].detach()
    for inputs in (6, 32, 32, 32):
        kernel, bias, row = row.split([32 * 9 * inputs, 32, len(row) - 32 * 9 * inputs - 32])
        matrix = kernel.view(32, -1)
        torch.testing.assert_close(matrix @ matrix.t(), 2 * torch.eye(32), atol=1e-5, rtol=0)
        assert torch.equal(bias, torch.zeros(32))
    encoder.weights.data += 0.05 * torch.randn(encoder.weights.shape, generator=generator)  # biases are not 0 then
    x = torch.rand(2, 3, *FRAME, generator=generator) - 0.5
    got = encoder(x)
    for member in range(2):
        torch.testing.assert_close(got[member], encoded(encoder.weights[member], x[member]))
    assert got.shape == (2, 3, encoder.features)


def test_shapes_at_84_pixels():
    assert encoded_size((9, 84, 84)) == (32, 35, 35)
    encoder = draw_encoder([0], 7, (9, 84, 84), CPU)
    assert encoder.weights.shape == (1, 9 * 9 * 32 + 32 + 3 * (32 * 9 * 32 + 32))
    assert encoder(torch.zeros(1, 1, 9, 84, 84)).shape == (1, 1, 39_200)
    assert encoded_size((3, 15, 15)) == (32, 1, 1)
    for frame in ((9, 14, 84), (9, 84, 14)):
        with pytest.raises(DataError, match="15 x 15"):
            draw_encoder([0], 7, frame, CPU)


def test_members_follow_from_their_seeds_alone(generator):
    together, alone = draw_encoder([5, 6], 7, FRAME, CPU), draw_encoder([6], 7, FRAME, CPU)
    assert torch.equal(together.weights[1:], alone.weights)
    assert not torch.equal(together.weights[0], together.weights[1])
    x = torch.rand(2, 4, *FRAME, generator=generator)
    assert torch.equal(together(x)[1:], alone(x[1:]))


def test_a_trunk_is_linear_then_norm_then_tanh_and_begins_orthogonal(generator):
    made = draw_trunk(Shape(FEATURES, 2, (0, 1), CPU), 7, 96)
    matrix = made.weights[1, : 96 * FEATURES].detach().view(96, FEATURES)
    torch.testing.assert_close(matrix.t() @ matrix, torch.eye(FEATURES), atol=1e-5, rtol=0)
    rest = made.weights[1, 96 * FEATURES :].detach()
    assert torch.equal(rest[: 3 * FEATURES], torch.tensor([0.0, 1.0, 0.0]).repeat_interleave(FEATURES))
    made.weights.data += 0.1 * torch.randn(made.weights.shape, generator=generator)
    x = torch.randn(2, 5, 96, generator=generator)
    for member in range(2):
        expected = trunk(made.weights[member].double(), x[member].double()).float()
        torch.testing.assert_close(made(x)[member], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("inputs", [32, 39_200])
def test_a_product_in_parts_is_the_product(inputs, generator):
    made = draw_trunk(Shape(FEATURES, 2, (0,), CPU), 7, inputs)
    assert made._parts > 1
    assert inputs % (8 * made._parts) == 0
    x, matrix = torch.randn(1, 2, inputs, generator=generator), made.weights[0, : inputs * FEATURES].detach()
    y = functional.layer_norm(x[0] @ matrix.view(inputs, FEATURES), (FEATURES,))
    torch.testing.assert_close(made(x)[0].detach(), y.tanh(), atol=1e-5, rtol=1e-4)
