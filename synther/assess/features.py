"""Convert rows to inputs and targets of small networks.

Columns are scaled with mean and std of the real rows. Discrete actions are one-hot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.standard import Standard, far_values
from synther.data.transitions import Transitions

Array = NDArray[Any]

LIMIT = 10.0
"""Scaled values are clipped to this range, in stds."""

MOST_ACTIONS = 256
"""Discrete actions with more different values than this are treated as numbers, not one-hot."""


@dataclass(frozen=True, eq=False)
class Features:
    """The scales of real rows. Every method converts rows to a float32 matrix (n, columns)."""

    observations: Standard
    changes: Standard
    """Scale of s' - s."""
    rewards: Standard
    actions: Standard | None
    """Scale of the actions; None if actions are one-hot."""
    action_values: Array | None
    """The discrete actions that occur in real rows; None if actions are numbers."""

    @classmethod
    def of(cls, real: Transitions) -> Features:
        """Compute the scales of real rows."""
        values = np.unique(real.action) if real.action.ndim == 1 else None
        if values is not None and len(values) > MOST_ACTIONS:
            values = None
        far = far_values(real.observation), far_values(real.next_observation)
        return cls(
            observations=Standard.of(real.observation, far[0]),
            changes=Standard.of(_difference(real), far[0] | far[1]),
            rewards=Standard.of(real.reward[:, None]),
            actions=Standard.of(real.action.reshape(len(real), -1)) if values is None else None,
            action_values=values,
        )

    def state(self, rows: Transitions) -> Array:
        return self.observations.scaled(rows.observation, LIMIT)

    def next_state(self, rows: Transitions) -> Array:
        return self.observations.scaled(rows.next_observation, LIMIT)

    def action(self, rows: Transitions) -> Array:
        """Return scaled or one-hot actions. A discrete action that does not occur in real rows becomes zeros."""
        if self.action_values is not None:
            codes: Array = np.equal(rows.action[:, None], self.action_values).astype(np.float32)
            return codes
        assert self.actions is not None
        return self.actions.scaled(rows.action.reshape(len(rows), -1), LIMIT)

    def change(self, rows: Transitions) -> Array:
        return self.changes.scaled(_difference(rows), LIMIT)

    def reward(self, rows: Transitions) -> Array:
        return self.rewards.scaled(rows.reward[:, None], LIMIT)

    def decision(self, rows: Transitions) -> Array:
        """Return s and a, the inputs of networks that predict outcomes."""
        return np.hstack([self.state(rows), self.action(rows)])

    def outcome(self, rows: Transitions) -> Array:
        """Return s' - s and r, the targets of networks that predict outcomes."""
        return np.hstack([self.change(rows), self.reward(rows)])

    def whole(self, rows: Transitions) -> Array:
        """Return all fields of a row for a classifier. s' - s is included because small steps cannot be seen in s'."""
        terminal = rows.terminal[:, None].astype(np.float32)
        return np.hstack([self.decision(rows), self.next_state(rows), self.outcome(rows), terminal])


def _difference(rows: Transitions) -> Array:
    with np.errstate(over="ignore"):
        return np.nan_to_num(rows.next_observation.astype(np.float64) - rows.observation)
