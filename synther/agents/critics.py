"""Functions shared by all critics: values of pairs, backups, squared errors. Member axes come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.agents.rows import Batch
from synther.agents.stacked import Networks

if TYPE_CHECKING:
    from synther.agents.algorithm import Algorithm


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


def td_errors(algorithm: Algorithm, batch: Batch, discount: float) -> Tensor | None:
    """How far the critics are from their one-step target, (S, B). None where the algorithm has no critics of pairs.

    The target takes the policy's action without noise, and no entropy is added.
    """
    critics: Networks | None = getattr(algorithm, "critics", None)
    if critics is None:
        return None
    target: Networks = getattr(algorithm, "target_critics", critics)
    action = algorithm.explore(batch.next_observation, torch.zeros_like(batch.action))
    then = torch.cat([batch.next_observation, action], -1)
    expected = backup(batch, _lowest(target(then, training=False)), discount)
    return (expected - _lowest(critics(batch.pair, training=False))).abs()


def _lowest(values: Tensor) -> Tensor:
    """The lowest value that the critics of an ensemble give, (S, E, B, 1) to (S, B), or the value of a single one."""
    values = values.squeeze(-1)
    return values.amin(1) if values.dim() == 3 else values


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
