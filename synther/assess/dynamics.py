"""Whether synthetic rows obey the world they are of: next observations and rewards against somebody who knows.

The judge is a simulator put into the synthetic state, or networks fitted on real rows where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.assess.features import Features
from synther.assess.learners import Networks
from synther.assess.standard import Standard
from synther.data.transitions import Transitions
from synther.errors import DataError

Array = NDArray[Any]

Simulator = Callable[[Array, Array], tuple[Array, Array, Array]]
"""Of observations and actions: the true next observations, rewards and terminals. NaN where it cannot say."""


def dynamics_error(transitions: Transitions, true_next: ArrayLike, real: Transitions) -> float:
    """How far the next observations of `transitions` are from `true_next` (N, O), which a simulator gave for the same
    observations and actions: the median over rows of `next_errors`.

    Range 0 (physics kept) to infinity; lower is better.
    """
    return float(np.median(next_errors(transitions, true_next, Standard.of(real.next_observation))))


def next_errors(transitions: Transitions, true_next: ArrayLike, standard: Standard) -> Array:
    """For each row the mean over columns of the squared difference of its next observation from the true one, in
    stds of the real next observations.

    Range 0 (physics kept) to infinity; lower is better. Columns that never change in the real data are left out. A
    row the simulator could not follow (NaN) counts as infinitely far.
    """
    truth = np.asarray(true_next, np.float64)
    if truth.shape != transitions.next_observation.shape:
        raise DataError(f"true_next has shape {truth.shape}: expected {transitions.next_observation.shape}")
    if len(standard.varies) != truth.shape[1]:
        raise DataError(f"the real rows have {len(standard.varies)} observation columns, not {truth.shape[1]}")
    if not standard.varies.any():
        raise DataError("every next observation of the real rows is the same: there is no scale to measure errors by")
    return _squares(transitions.next_observation, truth, standard)


def reward_errors(transitions: Transitions, true_reward: ArrayLike, standard: Standard) -> Array:
    """For each row the squared difference of its reward from the true one, in stds of the real rewards.

    Range 0 to infinity; lower is better. NaN counts as infinitely far.
    """
    truth = np.asarray(true_reward, np.float64)
    if truth.shape != transitions.reward.shape:
        raise DataError(f"true_reward has shape {truth.shape}: expected {transitions.reward.shape}")
    if not standard.varies.all():
        raise DataError("every reward of the real rows is the same: there is no scale to measure errors by")
    return _squares(transitions.reward[:, None], truth[:, None], standard)


def _squares(values: Array, truth: Array, standard: Standard) -> Array:
    columns = standard.varies
    with np.errstate(over="ignore"):
        error = (values[:, columns] - truth[:, columns]) / standard.std[columns]
        distance = np.mean(np.square(error), axis=1)
    return np.where(np.isnan(distance), np.inf, distance)


def predicted(networks: Networks, features: Features, rows: Transitions) -> tuple[Array, Array]:
    """Next observations and rewards of `rows` as networks fitted on `Features.outcome` expect them, on average."""
    outcome = networks.predict(features.decision(rows)).mean(axis=0)
    change, reward = features.changes.raw(outcome[:, :-1]), features.rewards.raw(outcome[:, -1:])
    return rows.observation + change, reward[:, 0]
