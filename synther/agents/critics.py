"""Functions shared by all critics: values of pairs, backups, squared errors. Member axes come first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.agents.rows import Batch
from synther.agents.stacked import Networks


def values(critics: Networks, observation: Tensor, action: Tensor) -> Tensor:
    """Values of (S, B, O) and (S, B, A): (S, E, B) from an ensemble of critics, (S, B) from a single one."""
    return critics(torch.cat([observation, action], -1)).squeeze(-1)


def min_over_critics(values: Tensor) -> Tensor:
    """The minimum over the critics of an ensemble, (S, E, B) -> (S, B)."""
    return torch.minimum(*values.unbind(1)) if values.shape[1] == 2 else values.amin(1)


def backup(batch: Batch, next_value: Tensor, discount: float) -> Tensor:
    """r + discount * (1 - terminal) * V(s'), (S, B). Rows that have a discount of their own are discounted by that."""
    if next_value.shape != batch.reward.shape:
        raise ValueError(f"expected values of shape {tuple(batch.reward.shape)}, got {tuple(next_value.shape)}")
    if batch.discount is not None:
        return torch.addcmul(batch.reward, batch.discount * (1 - batch.terminal), next_value)
    return torch.addcmul(batch.reward, 1 - batch.terminal, next_value, value=discount)


def squared_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Each critic's mean squared error (S, E), from predictions (S, E, B) and their shared target (S, B)."""
    if predicted.dim() != 3 or (predicted.shape[0], predicted.shape[2]) != target.shape:
        raise ValueError(f"expected (S, E, B) against (S, B), got {tuple(predicted.shape)}, {tuple(target.shape)}")
    result: Tensor = _SquaredErrors.apply(predicted, target)  # type: ignore[no-untyped-call]
    return result


class _SquaredErrors(torch.autograd.Function):
    """Hand-written, because PyTorch's gradient takes three times as many passes over memory."""

    @staticmethod
    def forward(ctx: Any, predicted: Tensor, target: Tensor) -> Tensor:
        error = predicted - target.unsqueeze(1)
        ctx.save_for_backward(error)
        return error.square().mean(2)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, towards: Tensor) -> tuple[Tensor, None]:
        (error,) = ctx.saved_tensors
        return error * (towards * (2 / error.shape[2])).unsqueeze(2), None
