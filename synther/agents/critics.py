"""What every learner of action values does: evaluate pairs, back values up, take squared errors. Member axes first."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.agents.rows import Batch
from synther.agents.stacked import Stack


def values(critics: Stack, observation: Tensor, action: Tensor) -> Tensor:
    """Of (S, B, O) and (S, B, A), as every critic of an ensemble sees them: (S, E, B); as a single one does: (S, B)."""
    return critics(torch.cat([observation, action], -1)).squeeze(-1)


def smallest(values: Tensor) -> Tensor:
    """What the most pessimistic critic says, (S, E, B) -> (S, B)."""
    return torch.minimum(*values.unbind(1)) if values.shape[1] == 2 else values.amin(1)


def backup(batch: Batch, next_value: Tensor, discount: float) -> Tensor:
    """r + discount * V(s') (S, B): after a terminal there is nothing to come."""
    if next_value.shape != batch.reward.shape:
        raise ValueError(f"expected values of shape {tuple(batch.reward.shape)}, got {tuple(next_value.shape)}")
    return batch.reward + discount * (1 - batch.terminal) * next_value


def squared_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Each critic's mean squared error (S, E), from predictions (S, E, B) and the target (S, B) that they share."""
    if predicted.dim() != 3 or (predicted.shape[0], predicted.shape[2]) != target.shape:
        raise ValueError(f"expected (S, E, B) against (S, B), got {tuple(predicted.shape)}, {tuple(target.shape)}")
    return (predicted - target.unsqueeze(1)).square().mean(2)
