"""One member's networks in PyTorch's own functions, from the row of numbers that holds their weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional


def head(rows: torch.Tensor, sizes: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Each network of `rows` (E, P), or the one of (P,), on x (B, in): (E, B, out), (B, out)."""
    if rows.dim() == 2:
        return torch.stack([head(row, sizes, x) for row in rows])
    shapes = list(pairwise(sizes))
    at, bias_at = 0, sum(inputs * outputs for inputs, outputs in shapes)
    for layer, (inputs, outputs) in enumerate(shapes):
        x = x @ rows[at : at + inputs * outputs].view(inputs, outputs) + rows[bias_at : bias_at + outputs]
        x = x.relu() if layer < len(shapes) - 1 else x
        at, bias_at = at + inputs * outputs, bias_at + outputs
    return x


def trunk(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    matrix, bias, gain, shift, _ = row.split([x.shape[1] * 50, 50, 50, 50, len(row) - 50 * (x.shape[1] + 3)])
    return functional.layer_norm(x @ matrix.view(-1, 50) + bias, (50,), gain, shift).tanh()


def encoded(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for stride in (2, 1, 1, 1):
        count = 32 * 9 * x.shape[1]
        kernel, bias, row = row.split([count, 32, len(row) - count - 32])
        x = functional.conv2d(x, kernel.view(32, 3, 3, -1).permute(0, 3, 1, 2), bias, stride).relu()
    return x.permute(0, 2, 3, 1).flatten(1)
