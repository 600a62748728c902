"""What every learner of action values does: evaluate pairs, back values up, take squared errors. Member axes first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.agents.rows import Batch
from synther.agents.stacked import Stack


def values(critics: Stack, observation: Tensor, action: Tensor) -> Tensor:
    """Of (S, B, O) and (S, B, A), as every critic of an ensemble sees them: (S, E, B); as a single one does: (S, B)."""
    return critics(torch.cat([observation, action], -1)).squeeze(-1)


def min_over_critics(values: Tensor) -> Tensor:
    """What the most pessimistic critic says, (S, E, B) -> (S, B)."""
    return torch.minimum(*values.unbind(1)) if values.shape[1] == 2 else values.amin(1)


def backup(batch: Batch, next_value: Tensor, discount: float) -> Tensor:
    """r + discount * V(s') (S, B): after a terminal there is nothing to come."""
    if next_value.shape != batch.reward.shape:
        raise ValueError(f"expected values of shape {tuple(batch.reward.shape)}, got {tuple(next_value.shape)}")
    return torch.addcmul(batch.reward, 1 - batch.terminal, next_value, value=discount)


def squared_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Each critic's mean squared error (S, E), from predictions (S, E, B) and the target (S, B) that they share."""
    if predicted.dim() != 3 or (predicted.shape[0], predicted.shape[2]) != target.shape:
        raise ValueError(f"expected (S, E, B) against (S, B), got {tuple(predicted.shape)}, {tuple(target.shape)}")
    result: Tensor = _SquaredErrors.apply(predicted, target)  # type: ignore[no-untyped-call]
    return result


class _SquaredErrors(torch.autograd.Function):
    """By hand because PyTorch takes three times as many passes for the gradient."""

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
