"""Rows as inputs and outputs of small networks: scaled by the real rows, discrete actions as one column a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.standard import Standard
from synther.data.transitions import Transitions

Array = NDArray[Any]

LIMIT = 10.0
"""Deviations at which scaled values are cut."""

MOST_ACTIONS = 256
"""Discrete actions of more different values are taken as numbers."""


@dataclass(frozen=True, eq=False)
class Features:
    """The scales of real rows. Every method gives (n, columns) in float32."""

    observations: Standard
    changes: Standard
    rewards: Standard
    actions: Standard | None
    action_values: Array | None
    """The discrete actions that real rows hold."""

    @classmethod
    def of(cls, real: Transitions) -> Features:
        values = np.unique(real.action) if real.action.ndim == 1 else None
        if values is not None and len(values) > MOST_ACTIONS:
            values = None
        return cls(
            observations=Standard.of(real.observation),
            changes=Standard.of(_difference(real)),
            rewards=Standard.of(real.reward[:, None]),
            actions=Standard.of(real.action.reshape(len(real), -1)) if values is None else None,
            action_values=values,
        )

    def state(self, rows: Transitions) -> Array:
        return self.observations.scaled(rows.observation, LIMIT)

    def next_state(self, rows: Transitions) -> Array:
        return self.observations.scaled(rows.next_observation, LIMIT)

    def action(self, rows: Transitions) -> Array:
        """A discrete action that no real row holds is a row of zeros."""
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
        """What a model of the world is given: s and a."""
        return np.hstack([self.state(rows), self.action(rows)])

    def outcome(self, rows: Transitions) -> Array:
        """What it has to tell: s' - s and r."""
        return np.hstack([self.change(rows), self.reward(rows)])

    def whole(self, rows: Transitions) -> Array:
        """Everything there is to see in a row; s' - s beside s', which alone hides how far a step went."""
        terminal = rows.terminal[:, None].astype(np.float32)
        return np.hstack([self.decision(rows), self.next_state(rows), self.outcome(rows), terminal])


def _difference(rows: Transitions) -> Array:
    with np.errstate(over="ignore"):
        return np.nan_to_num(rows.next_observation.astype(np.float64) - rows.observation)
