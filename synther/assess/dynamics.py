"""Measure the errors of next observations and rewards of synthetic rows.

The right ones come from a judge: a simulator that is started in the synthetic state, or networks fitted on real rows if
there is no simulator.
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
"""A function from observations and actions to the true next observations, rewards and terminals. NaN marks rows that it
cannot simulate."""


def dynamics_error(transitions: Transitions, true_next: ArrayLike, real: Transitions) -> float:
    """Return the median over rows of `next_errors`.

    `true_next` (N, O) are the next observations of a simulator for the same observations and actions. Range 0 (correct)
    to infinity; lower is better.
    """
    return float(np.median(next_errors(transitions, true_next, Standard.of(real.next_observation))))


def next_errors(transitions: Transitions, true_next: ArrayLike, standard: Standard) -> Array:
    """Return the squared error of the next observation of each row, as a mean over columns, in stds of real rows. (N,)

    Range 0 (correct) to infinity; lower is better. Columns that are constant in the real data are left out. Rows that
    the simulator cannot simulate (NaN) have an infinite error.
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
    """Return the squared error of the reward of each row, in stds of the real rewards. (N,)

    Range 0 (correct) to infinity; lower is better. NaN gives an infinite error.
    """
    truth = np.asarray(true_reward, np.float64)
    if truth.shape != transitions.reward.shape:
        raise DataError(f"true_reward has shape {truth.shape}: expected {transitions.reward.shape}")
    if not standard.varies.all():
        raise DataError("every reward of the real rows is the same: there is no scale to measure errors by")
    return _squares(transitions.reward[:, None], truth[:, None], standard)


def _squares(values: Array, truth: Array, standard: Standard) -> Array:
    """Return the mean over columns of squared scaled errors. (N,) NaN becomes infinity."""
    columns = standard.varies
    with np.errstate(over="ignore"):
        error = (values[:, columns] - truth[:, columns]) / standard.std[columns]
        distance = np.mean(np.square(error), axis=1)
    return np.where(np.isnan(distance), np.inf, distance)


def predicted(networks: Networks, features: Features, rows: Transitions) -> tuple[Array, Array]:
    """Return the next observations and rewards that networks fitted on `Features.outcome` predict on average."""
    outcome = networks.predict(features.decision(rows)).mean(axis=0)
    change, reward = features.changes.raw(outcome[:, :-1]), features.rewards.raw(outcome[:, -1:])
    return rows.observation + change, reward[:, 0]
