"""Relevance functions from your own critics and policy: value, TD error and log-probability of an action.

    condition = td_error(q, policy, target=q_target, discount=0.99)

`q(observation, action)` and `policy(observation)` take and return tensors of N rows. If `q` returns the values of
several critics as one tensor (E, N), the value of a row is the lowest of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.transitions import Transitions

Critic = Callable[[Tensor, Tensor], Tensor]
Policy = Callable[[Tensor], Tensor]

_CHUNK = 1 << 16  # number of rows that are computed together


def value(q: Critic, policy: Policy, *, device: str = "cpu") -> Callable[[Transitions], NDArray[np.float64]]:
    """Return a relevance function that computes Q(s, pi(s)), the return that the critic expects from observation s."""

    def value(rows: Transitions) -> NDArray[np.float64]:
        def of(part: Transitions) -> Tensor:
            observation = _tensor(part.observation, device)
            return lowest(q(observation, policy(observation)))

        return _in_chunks(rows, of)

    return value


def td_error(
    q: Critic, policy: Policy, *, target: Critic | None = None, discount: float = 0.99, device: str = "cpu"
) -> Callable[[Transitions], NDArray[np.float64]]:
    """Return a relevance function that computes the absolute TD error |r + discount Q'(s', pi(s')) - Q(s, a)|. Q' is
    the `target` critic, by default Q itself. After a terminal row, Q' counts as 0."""

    def td_error(rows: Transitions) -> NDArray[np.float64]:
        def of(part: Transitions) -> Tensor:
            observation, next_observation, action, reward = (
                _tensor(values, device)
                for values in (part.observation, part.next_observation, part.action, part.reward)
            )
            next_value = lowest((target or q)(next_observation, policy(next_observation)))
            not_terminal = _tensor(~part.terminal, device)
            return (reward + discount * not_terminal * next_value - lowest(q(observation, action))).abs()

        return _in_chunks(rows, of)

    return td_error


def log_probability(
    log_prob: Callable[[Tensor, Tensor], Tensor], *, device: str = "cpu"
) -> Callable[[Transitions], NDArray[np.float64]]:
    """Return a relevance function that computes log pi(a | s), which is high in rows that the policy would produce
    itself. `log_prob(observation, action)` returns (N,)."""

    def log_probability(rows: Transitions) -> NDArray[np.float64]:
        return _in_chunks(rows, lambda part: log_prob(_tensor(part.observation, device), _tensor(part.action, device)))

    return log_probability


def _in_chunks(rows: Transitions, of: Callable[[Transitions], Tensor]) -> NDArray[np.float64]:
    """Compute `of` for all rows, some rows at a time. (N,)"""
    with torch.no_grad():
        parts = [of(part).double().cpu().numpy().reshape(len(part)) for part in rows.chunks(_CHUNK)]
    return np.concatenate(parts)


def _tensor(values: NDArray[np.generic], device: str) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values)).to(device)
    return tensor if tensor.dtype in (torch.int32, torch.int64) else tensor.float()


def lowest(values: Tensor) -> Tensor:
    """Return the lowest value of each row (N,), from the values of one critic (N,) or (N, 1), or of several (E, N)."""
    values = values.squeeze(-1)
    return values.amin(0) if values.dim() == 2 else values
