"""Functions that all critics share: values, targets (backups) and squared errors. The axis of members comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synther.agents.adam import Adam
from synther.agents.rows import Batch
from synther.agents.stacked import Networks
from synther.kernels import perceptrons

if TYPE_CHECKING:
    from synther.agents.algorithm import Algorithm


def values(critics: Networks, observation: Tensor, action: Tensor) -> Tensor:
    """Return the critics' values of observations (S, B, O) and actions (S, B, A).

    They are (S, E, B) for an ensemble of critics, and (S, B) for a single critic.
    """
    return critics(torch.cat([observation, action], -1)).squeeze(-1)


def min_over_critics(values: Tensor) -> Tensor:
    """Return the minimum (S, B) of values (S, E, B) over the critics of an ensemble."""
    return torch.minimum(*values.unbind(1)) if values.shape[1] == 2 else values.amin(1)


def backup(batch: Batch, next_value: Tensor, discount: float) -> Tensor:
    """Return the target values r + discount * (1 - terminal) * V(s') (S, B).

    If the rows have their own discounts, these are used instead of `discount`.
    """
    if next_value.shape != batch.reward.shape:
        raise ValueError(f"expected values of shape {tuple(batch.reward.shape)}, got {tuple(next_value.shape)}")
    if batch.discount is not None:
        return torch.addcmul(batch.reward, batch.discount * (1 - batch.terminal), next_value)
    return torch.addcmul(batch.reward, 1 - batch.terminal, next_value, value=discount)


def squared_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Return each critic's mean squared error (S, E), from predictions (S, E, B) and their shared target (S, B)."""
    if predicted.dim() != 3 or (predicted.shape[0], predicted.shape[2]) != target.shape:
        raise ValueError(f"expected (S, E, B) against (S, B), got {tuple(predicted.shape)}, {tuple(target.shape)}")
    result: Tensor = _SquaredErrors.apply(predicted, target)  # type: ignore[no-untyped-call]
    return result


def td_step(
    critics: Networks,
    batch: Batch,
    next_values: Tensor,
    discount: float,
    adam: Adam,
    *,
    weight: float = 1.0,
    follower: Networks | None = None,
    tau: float = 0.0,
) -> Tensor:
    """Do one step of Adam on `weight` times each critic's mean squared TD error. Return these losses (S, E).

    The target is the `backup` of the smallest of `next_values` (S, M, B). For `follower` and `tau` see `Adam.step`.
    """
    kind = critics.perceptron
    if kind is not None and batch.discount is None and kind.fits(critics.rows, batch.pair):
        rows = critics.rows
        problem = perceptrons.Problem(batch.pair, batch.reward, batch.terminal, next_values, discount, weight)
        return perceptrons.td_step(
            kind, rows, problem, adam.mean.view_as(rows), adam.square.view_as(rows), adam.count, adam.rate,
            beta1=adam.betas[0], beta2=adam.betas[1], decay=adam.decay,
            follower=None if follower is None else follower.rows, tau=tau,
        ).view(critics.weights.shape[:-1])  # fmt: skip
    target = backup(batch, min_over_critics(next_values), discount)
    losses = weight * squared_errors(critics(batch.pair).squeeze(-1), target)
    adam.minimise(losses.sum(1), follower=follower, tau=tau)
    return losses.detach()


def td_errors(algorithm: Algorithm, batch: Batch, discount: float) -> Tensor | None:
    """Return the absolute TD errors (S, B) of the critics. Return None if the algorithm has no critics.

    The one-step target uses the policy's action without noise, and contains no entropy.
    """
    critics: Networks | None = getattr(algorithm, "critics", None)
    if critics is None:
        return None
    target: Networks = getattr(algorithm, "target_critics", critics)
    action = algorithm.explore(batch.next_observation, torch.zeros_like(batch.action))
    next_pair = torch.cat([batch.next_observation, action], -1)
    expected = backup(batch, _lowest(target(next_pair, training=False)), discount)
    return (expected - _lowest(critics(batch.pair, training=False))).abs()


def _lowest(values: Tensor) -> Tensor:
    """Return the minimum (S, B) of values (S, E, B, 1) over the critics, or the values (S, B, 1) of a single critic."""
    values = values.squeeze(-1)
    return values.amin(1) if values.dim() == 3 else values


class _SquaredErrors(torch.autograd.Function):
    """See `squared_errors`. PyTorch's gradient would take three times as many passes over memory."""

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
