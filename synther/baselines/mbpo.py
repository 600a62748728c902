"""What a user without a generative model would do: one-step rollouts in an ensemble of dynamics models.

As in MBPO (Janner et al. 2019), starts are real observations and a random member of the ensemble draws each outcome.
There is no agent here, so actions come from a policy that is cloned from the rows.

NOTE[paper]: MBPO rolls out the agent's own policy, for one to many steps, while the agent learns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.data.checks import check_count, check_rows, drawing_seed
from synther.data.layout import Layout
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.plain import whole_seed
from synther.progress import Progress, resolve
from synther.relevance import conditional
from synther.relevance.conditional import Networks
from synther.relevance.dynamics import DEPTH, WIDTH, Ensemble, Part, Units

Array = NDArray[Any]

_BLOCK_ROWS = 50_000
_MOST_ROWS = 200_000  # that a policy is cloned from
_HELD_OUT = 0.1
_LIMIT = 10.0  # standard deviations at which observations are cut
_WEIGHTS, _STARTS, _ACTIONS, _OUTCOMES = range(20, 24)  # streams of random numbers


class ClonedPolicy:
    """Actions as the rows have them, given the observation: normally distributed, or one of some categories."""

    def __init__(self, layout: Layout, units: Units, networks: Networks) -> None:
        self.layout, self.units, self.networks = layout, units, networks
        self.part = Part.of(layout, "action")

    @classmethod
    def fit(
        cls, rows: Transitions, layout: Layout, units: Units, *, seed: int, device: torch.device, progress: Progress
    ) -> ClonedPolicy | None:
        """A policy for rows of this layout; None where they have only one action."""
        part = Part.of(layout, "action")
        if not part.columns:
            return None
        matrix = layout.pack(rows)
        source = compute.generator(torch.device("cpu"), _WEIGHTS, seed)
        inputs = _seen(matrix, layout, units)
        fresh = Networks.fresh(inputs.shape[1], part.outputs, 1, WIDTH, DEPTH, source)
        policy = cls(layout, units, fresh)
        real, rest = policy._columns
        numbers = (matrix[:, real] - units.mean[real]) / units.std[real]
        targets = torch.from_numpy(np.concatenate([numbers, matrix[:, rest] > 0], 1).astype(np.float32))
        held_out = torch.rand(len(rows), generator=source) < (_HELD_OUT if len(rows) >= 20 else 0.0)
        steps = conditional.steps_for(len(rows))
        tensors = (each.to(device) for each in (inputs, targets, held_out))
        with progress.phase("policy", steps) as phase:
            policy.networks, _ = conditional.fit(fresh, *tensors, steps=steps, seed=seed, phase=phase)
        return policy

    @property
    def _columns(self) -> tuple[list[int], list[int]]:
        """Of numbers, and of flags and categories."""
        real = list(self.part.real)
        return real, self.part.columns[len(real) :]

    def act(self, rows: Transitions, source: torch.Generator) -> Transitions:
        """`rows` with other actions."""
        matrix, units = self.layout.pack(rows), self.units
        seen = _seen(matrix, self.layout, units).to(self.networks.device)
        drawn = self.networks.law(seen).draw(source).double().cpu().numpy()
        real, rest = self._columns
        matrix[:, real] = drawn[:, : len(real)] * units.std[real] + units.mean[real]
        matrix[:, rest] = drawn[:, len(real) :]
        return replace(rows, action=self.layout.unpack(matrix).action)


class MBPO:
    """`MBPO().fit(real).sample(n)`: real observations, cloned actions, outcomes of an ensemble."""

    def __init__(self, *, device: str = "auto", seed: int = 0) -> None:
        self.device, self.seed = compute.pick_device(device), whole_seed(seed)
        self.ensemble: Ensemble | None = None
        self.policy: ClonedPolicy | None = None
        self._rows: Transitions | None = None

    def fit(self, rows: Transitions, *, progress: Progress | bool = True) -> Self:
        """Fit the ensemble and the policy on `rows`, and remember their observations."""
        check_rows(rows)
        rows.refuse_extra("an ensemble of one-step dynamics models (mbpo)")
        progress = resolve(progress)
        how: Any = {"seed": self.seed, "device": self.device, "progress": progress}
        self.ensemble = Ensemble.fit(rows, **how)
        few = rows if len(rows) <= _MOST_ROWS else rows.subsample(_MOST_ROWS / len(rows), self.seed)
        self.policy = ClonedPolicy.fit(few, self.ensemble.layout, self.ensemble.units, **how)
        self._rows = rows
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """`count` rows. Every call draws other rows; the same seed gives the same rows."""
        if self.ensemble is None or self._rows is None:
            raise ConfigError("this MBPO has not been fitted: call fit(transitions) first")
        count, seed = check_count(count), drawing_seed(seed)
        starts = np.random.default_rng([_STARTS, seed])
        source = compute.generator(self.device, _ACTIONS, seed)
        blocks = []
        for number, start in enumerate(range(0, count, _BLOCK_ROWS)):
            picked = starts.integers(len(self._rows), size=min(_BLOCK_ROWS, count - start))
            begun = replace(self._rows[picked], timeout=None)
            acted = begun if self.policy is None else self.policy.act(begun, source)
            draw = np.random.default_rng([_OUTCOMES, seed, number]).integers(2**31)
            blocks.append(self.ensemble.outcomes(acted.observation, acted.action, int(draw)))
        return Transitions.concatenate(blocks)

    @property
    def parameters(self) -> int:
        """Weights of the ensemble and of the policy."""
        if self.ensemble is None:
            raise ConfigError("this MBPO has not been fitted: call fit(transitions) first")
        return self.ensemble.parameters + (0 if self.policy is None else self.policy.networks.parameters)


def _seen(matrix: Array, layout: Layout, units: Units) -> torch.Tensor:
    """Observations as the policy sees them. (N, I)"""
    columns = [column for column, field in enumerate(layout.fields) if field == "observation"]
    scaled = (matrix[:, columns] - units.mean[columns]) / units.std[columns]
    return torch.from_numpy(np.clip(scaled, -_LIMIT, _LIMIT).astype(np.float32))
