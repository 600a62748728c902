"""A baseline without a generative model of rows: one-step rollouts in an ensemble of dynamics models.

As in MBPO (Janner et al. 2019), a rollout starts at a real observation, and a random member of the ensemble draws the
outcome. There is no agent here, so actions come from a policy that is cloned from the rows.

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

_BLOCK_ROWS = 50_000  # number of rows that are generated together
_MOST_ROWS = 200_000  # maximum number of rows from which the policy is cloned
_HELD_OUT = 0.1  # share of these rows that are held out
_LIMIT = 10.0  # number of standard deviations at which observations are clipped
_WEIGHTS, _STARTS, _ACTIONS, _OUTCOMES = range(20, 24)  # streams of random numbers


class ClonedPolicy:
    """A policy that imitates the actions in the rows (behaviour cloning). Given an observation, real actions are
    normally distributed, and flags and categories have a probability for each value."""

    def __init__(self, layout: Layout, units: Units, networks: Networks) -> None:
        self.layout, self.units, self.networks = layout, units, networks
        self.part = Part.of(layout, "action")

    @classmethod
    def fit(
        cls, rows: Transitions, layout: Layout, units: Units, *, seed: int, device: torch.device, progress: Progress
    ) -> ClonedPolicy | None:
        """Fit a policy to rows of this layout. Return None if all rows have the same action."""
        part = Part.of(layout, "action")
        if not part.columns:
            return None
        matrix = layout.pack(rows)
        source = compute.generator(torch.device("cpu"), _WEIGHTS, seed)
        inputs = _inputs(matrix, layout, units)
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
        """The matrix columns of real actions, and those of flags and categories."""
        real = list(self.part.real)
        return real, self.part.columns[len(real) :]

    def act(self, rows: Transitions, source: torch.Generator) -> Transitions:
        """Replace the actions of `rows` by actions of this policy."""
        matrix, units = self.layout.pack(rows), self.units
        inputs = _inputs(matrix, self.layout, units).to(self.networks.device)
        drawn = self.networks.law(inputs).draw(source).double().cpu().numpy()
        real, rest = self._columns
        matrix[:, real] = drawn[:, : len(real)] * units.std[real] + units.mean[real]
        matrix[:, rest] = drawn[:, len(real) :]
        return replace(rows, action=self.layout.unpack(matrix).action)


class MBPO:
    """Generates rows from real observations, actions of a cloned policy, and outcomes of an ensemble of dynamics
    models: `MBPO().fit(real).sample(n)`."""

    def __init__(self, *, device: str = "auto", seed: int = 0) -> None:
        self.device, self.seed = compute.pick_device(device), whole_seed(seed)
        self.ensemble: Ensemble | None = None
        self.policy: ClonedPolicy | None = None
        self._rows: Transitions | None = None

    def fit(self, rows: Transitions, *, progress: Progress | bool = True) -> Self:
        """Fit the ensemble and the policy on `rows`, and store the rows for their observations."""
        check_rows(rows)
        rows.refuse_extra("an ensemble of one-step dynamics models (mbpo)")
        progress = resolve(progress)
        options: Any = {"seed": self.seed, "device": self.device, "progress": progress}
        self.ensemble = Ensemble.fit(rows, **options)
        sample = rows if len(rows) <= _MOST_ROWS else rows.subsample(_MOST_ROWS / len(rows), self.seed)
        self.policy = ClonedPolicy.fit(sample, self.ensemble.layout, self.ensemble.units, **options)
        self._rows = rows
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """Return `count` rows. Each call returns different rows. Pass a `seed` to get the same rows again."""
        if self.ensemble is None or self._rows is None:
            raise ConfigError("this MBPO has not been fitted: call fit(transitions) first")
        count, seed = check_count(count), drawing_seed(seed)
        starts = np.random.default_rng([_STARTS, seed])
        source = compute.generator(self.device, _ACTIONS, seed)
        blocks = []
        for number, start in enumerate(range(0, count, _BLOCK_ROWS)):
            picked = starts.integers(len(self._rows), size=min(_BLOCK_ROWS, count - start))
            rows = replace(self._rows[picked], timeout=None)
            if self.policy is not None:
                rows = self.policy.act(rows, source)
            block_seed = np.random.default_rng([_OUTCOMES, seed, number]).integers(2**31)
            blocks.append(self.ensemble.outcomes(rows.observation, rows.action, int(block_seed)))
        return Transitions.concatenate(blocks)

    @property
    def parameters(self) -> int:
        """The number of weights of the ensemble and the policy."""
        if self.ensemble is None:
            raise ConfigError("this MBPO has not been fitted: call fit(transitions) first")
        return self.ensemble.parameters + (0 if self.policy is None else self.policy.networks.parameters)


def _inputs(matrix: Array, layout: Layout, units: Units) -> torch.Tensor:
    """Return the scaled observations, which are the inputs of the policy. (N, I)"""
    columns = [column for column, field in enumerate(layout.fields) if field == "observation"]
    scaled = (matrix[:, columns] - units.mean[columns]) / units.std[columns]
    return torch.from_numpy(np.clip(scaled, -_LIMIT, _LIMIT).astype(np.float32))
