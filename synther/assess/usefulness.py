"""Train on synthetic, test on real: score networks that learned from synthetic rows on held-out real rows.

There are two tasks, which every agent has in some form: predict the outcome (s' - s and r) from s and a (`outcomes`),
and imitate the actions (`actions`). Each task is learned three times: from synthetic rows, from the same number of real
rows, and half and half. All networks are scored on the same held-out real rows.

Each network (member) leaves out one fold of the rows. So every row has one member that has not seen it. The errors of
these members are as large as on new rows, and `spread.py` uses them to measure how far outcomes scatter.
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
"""Number of networks fitted on each kind of rows. Scores are averaged over them."""


@dataclass(frozen=True)
class Scores:
    """Scores on held-out real rows after learning from each kind of rows. Higher is better, 1 is perfect."""

    synthetic: float
    mixed: float
    real: float


@dataclass(frozen=True, eq=False)
class Lesson:
    """The result of learning one task from each kind of rows."""

    scores: Scores
    networks: Networks
    """The networks fitted on real rows."""
    synthetic: Networks
    """The networks fitted on synthetic rows."""


def outcomes(
    features: Features,
    real: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Lesson:
    """Learn to predict outcomes from s and a.

    Scores are R^2. 1 is best, 0 is no better than the mean outcome, and there is no lower end.
    """
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
    """Learn to imitate the actions from s.

    Scores are R^2 for continuous actions, and the share of correct actions for discrete ones. 1 is best.
    """
    discrete = features.action_values is not None
    inputs = [features.state(rows) for rows in (real, synthetic)]
    targets = [features.action(rows) for rows in (real, synthetic)]
    networks = _fit(inputs, targets, learners.classes if discrete else learners.squared, seed, device)
    answers, truth = networks.predict(features.state(held_out)), features.action(held_out)
    score = accuracy if discrete else explained
    return _lesson([score(answer, truth) for answer in answers], networks)


def explained(answer: Array, truth: Array) -> float:
    """Return R^2 over all columns of (n, D) together: 1 - squared errors / squared distances from the mean.

    Range minus infinity to 1 (best). If the truth is constant: 1 for the right answer, else 0.
    """
    errors = float(np.square(answer - truth, dtype=np.float64).sum())
    total = float(np.square(truth - truth.mean(axis=0, dtype=np.float64)).sum())
    return 1.0 - errors / total if total > 0 else float(errors < 1e-6 * truth.size)


def accuracy(answer: Array, truth: Array) -> float:
    """Return the share of rows in which the column of the largest answer is the true one. Range 0 to 1 (best)."""
    return float(np.mean(answer.argmax(axis=1) == np.where(truth.any(axis=1), truth.argmax(axis=1), -1)))


def fold(count: int, members: int) -> Array:
    """Return for each of `count` rows the member that does not learn from it. (n,) Rows are in random order."""
    return np.arange(count) % members


def seen(count: int) -> list[Array]:
    """Return for each member the numbers of the rows that it learns from. A single member learns from all rows."""
    left_out = fold(count, MEMBERS)
    return [np.flatnonzero((left_out != member) | (MEMBERS == 1)) for member in range(MEMBERS)]


def _fit(
    inputs: list[Array], targets: list[Array], loss: learners.Loss, seed: int, device: torch.device | str
) -> Networks:
    """Fit `MEMBERS` networks on real rows, then as many on synthetic rows, then as many half and half."""
    real, synthetic = (seen(len(rows)) for rows in inputs)
    synthetic = [rows + len(inputs[0]) for rows in synthetic]
    both = zip(real, synthetic, strict=True)
    draws = [[rows] for rows in (*real, *synthetic)] + [list(pair) for pair in both]
    return learners.fit(np.concatenate(inputs), np.concatenate(targets), draws, loss, seed=seed, device=device)


def _lesson(scores: list[float], networks: Networks) -> Lesson:
    """Average the scores over the members of each kind of rows, in the order of `_fit`."""
    real, synthetic, mixed = np.reshape(scores, (3, MEMBERS)).mean(axis=1).tolist()
    parts = networks.members(0, MEMBERS), networks.members(MEMBERS, 2 * MEMBERS)
    return Lesson(Scores(synthetic, mixed, real), *parts)
