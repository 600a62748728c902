"""What critics of your own say about rows: their value, and how far a one-step target is from it.

    condition = td_error(q, policy, target=q_target, discount=0.99)

`q(observation, action)` and `policy(observation)` take and give tensors of N rows. Several critics may come as one
tensor (E, N): the value is the lowest of them.
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

_CHUNK = 1 << 16


def value(q: Critic, policy: Policy, *, device: str = "cpu") -> Callable[[Transitions], NDArray[np.float64]]:
    """Q(s, pi(s)): how much return the critic expects from a row's observation on."""

    def value(rows: Transitions) -> NDArray[np.float64]:
        def of(part: Transitions) -> Tensor:
            observation = _tensor(part.observation, device)
            return lowest(q(observation, policy(observation)))

        return _all(rows, of)

    return value


def td_error(
    q: Critic, policy: Policy, *, target: Critic | None = None, discount: float = 0.99, device: str = "cpu"
) -> Callable[[Transitions], NDArray[np.float64]]:
    """|r + discount Q'(s', pi(s')) - Q(s, a)|, where Q' is the `target` critic, or Q itself."""

    def td_error(rows: Transitions) -> NDArray[np.float64]:
        def of(part: Transitions) -> Tensor:
            now, then, action, reward = (
                _tensor(values, device)
                for values in (part.observation, part.next_observation, part.action, part.reward)
            )
            expected = lowest((target or q)(then, policy(then)))
            goes_on = _tensor(~part.terminal, device)
            return (reward + discount * goes_on * expected - lowest(q(now, action))).abs()

        return _all(rows, of)

    return td_error


def log_probability(
    log_prob: Callable[[Tensor, Tensor], Tensor], *, device: str = "cpu"
) -> Callable[[Transitions], NDArray[np.float64]]:
    """log pi(a | s) of a policy: high in rows that it would produce itself. `log_prob(observation, action)` is (N,)."""

    def log_probability(rows: Transitions) -> NDArray[np.float64]:
        return _all(rows, lambda part: log_prob(_tensor(part.observation, device), _tensor(part.action, device)))

    return log_probability


def _all(rows: Transitions, of: Callable[[Transitions], Tensor]) -> NDArray[np.float64]:
    with torch.no_grad():
        parts = [of(part).double().cpu().numpy().reshape(len(part)) for part in rows.chunks(_CHUNK)]
    return np.concatenate(parts)


def _tensor(values: NDArray[np.generic], device: str) -> Tensor:
    found = torch.from_numpy(np.ascontiguousarray(values)).to(device)
    return found if found.dtype in (torch.int32, torch.int64) else found.float()


def lowest(values: Tensor) -> Tensor:
    """Of one critic (N,) or (N, 1), or of several (E, N): (N,)."""
    values = values.squeeze(-1)
    return values.amin(0) if values.dim() == 2 else values
