"""Train on synthetic, test on real: what learners know about held-out real rows after seeing only generated ones.

Two tasks that every agent has in some form: to predict the outcome (s' - s and r) of s and a, and to imitate the
actions. Each is learned three times, from synthetic rows, from as many real rows, and from batches that are half and
half; all three are scored on the same held-out real rows.

Every member leaves out a part of the rows (its fold), so that each row has one member that has not seen it: the errors
of those members are as large as on new rows, and all rows can tell how far outcomes scatter (`spread.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners
from synther.assess.features import Features
from synther.assess.learners import Networks
from synther.data.transitions import Transitions

Array = NDArray[Any]

MEMBERS = 3
"""Networks fitted on each kind of rows; scores are averaged over them."""


@dataclass(frozen=True)
class Scores:
    """What was learned from each kind of rows. Higher is better, 1 is everything there is to know."""

    synthetic: float
    mixed: float
    real: float


@dataclass(frozen=True, eq=False)
class Lesson:
    scores: Scores
    networks: Networks
    """Those fitted on real rows."""
    synthetic: Networks
    """Those fitted on synthetic rows."""


def outcomes(
    features: Features,
    real: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Lesson:
    """A model of the world. Scores are R^2: 1 is best, 0 no better than the mean outcome, without lower end."""
    inputs = [features.decision(rows) for rows in (real, synthetic)]
    targets = [features.outcome(rows) for rows in (real, synthetic)]
    networks = _fit(inputs, targets, learners.squared, seed, device)
    answers = networks.predict(features.decision(held_out))
    return _lesson([explained(answer, features.outcome(held_out)) for answer in answers], networks)


def actions(
    features: Features,
    real: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Lesson:
    """A cloned behaviour. Scores are R^2 for continuous actions, and for discrete ones the share of rows whose action
    it names: 1 is best."""
    discrete = features.action_values is not None
    inputs = [features.state(rows) for rows in (real, synthetic)]
    targets = [features.action(rows) for rows in (real, synthetic)]
    networks = _fit(inputs, targets, learners.classes if discrete else learners.squared, seed, device)
    answers, truth = networks.predict(features.state(held_out)), features.action(held_out)
    score = named if discrete else explained
    return _lesson([score(answer, truth) for answer in answers], networks)


def explained(answer: Array, truth: Array) -> float:
    """R^2 over all columns of (n, D) together: 1 - squared errors / squared distances from the mean.

    Range minus infinity to 1 (best). Where the truth never changes: 1 for the right answer, else 0.
    """
    errors = float(np.square(answer - truth, dtype=np.float64).sum())
    total = float(np.square(truth - truth.mean(axis=0, dtype=np.float64)).sum())
    return 1.0 - errors / total if total > 0 else float(errors < 1e-6 * truth.size)


def named(answer: Array, truth: Array) -> float:
    """Share of rows whose highest answer is at the column of the true value. Range 0 to 1 (best)."""
    return float(np.mean(answer.argmax(axis=1) == np.where(truth.any(axis=1), truth.argmax(axis=1), -1)))


def fold(count: int, members: int) -> Array:
    """For each of `count` rows the member that has not seen it (n,). Rows come in random order."""
    return np.arange(count) % members


def seen(count: int) -> list[Array]:
    """For each member the numbers of the rows that it learns from; a single member learns from all of them."""
    left_out = fold(count, MEMBERS)
    return [np.flatnonzero((left_out != member) | (MEMBERS == 1)) for member in range(MEMBERS)]


def _fit(
    inputs: list[Array], targets: list[Array], loss: learners.Loss, seed: int, device: torch.device | str
) -> Networks:
    real, synthetic = (seen(len(rows)) for rows in inputs)
    synthetic = [rows + len(inputs[0]) for rows in synthetic]
    both = zip(real, synthetic, strict=True)
    draws = [[rows] for rows in (*real, *synthetic)] + [list(pair) for pair in both]
    return learners.fit(np.concatenate(inputs), np.concatenate(targets), draws, loss, seed=seed, device=device)


def _lesson(scores: list[float], networks: Networks) -> Lesson:
    real, synthetic, mixed = np.reshape(scores, (3, MEMBERS)).mean(axis=1).tolist()
    parts = networks.members(0, MEMBERS), networks.members(MEMBERS, 2 * MEMBERS)
    return Lesson(Scores(synthetic, mixed, real), *parts)
