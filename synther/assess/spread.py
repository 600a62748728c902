"""Measure how far outcomes scatter given (s, a): their standard deviation, prediction intervals, and a classifier.

For example, a generator can predict the mean next state correctly, but with half of the environment's noise.

Networks fitted on real rows predict the mean of each outcome column (s' - s and r). Other networks predict the std of
the residual. The residual divided by this std is the standardised residual z. No network predicts a row that it has
learned from. Synthetic and real rows are treated in the same way, so that errors of the networks cancel in a ratio.

Only random columns count. If a residual is an error of the networks, it shrinks when they are trained longer. The noise
of an environment does not.

Read `figures` first, then the measures `spread_ratio`, `inside` and `information`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners, usefulness
from synther.assess.features import Features
from synther.assess.figure import Figure, standard_error
from synther.assess.learners import Networks
from synther.assess.usefulness import Lesson
from synther.data.transitions import Transitions

Array = NDArray[Any]

FEWEST_ROWS = 500
"""Smallest number of reference rows, and of synthetic rows, for which the spread is measured."""

NOISE_SHARE = 0.003
"""Smallest share of the variance of a random column that networks cannot explain."""

MOST_GAIN = 0.15
"""If twice the training lowers the squared error of a column by more than this share, the column is not random: the
error comes from the networks."""

EFFORT = 0.5
"""Training steps of the networks that predict stds of residuals, and of the classifiers, as a share of the default."""

BANDS = {"band_50": 0.5, "band_90": 0.9}
"""Share of the real outcomes inside each prediction interval."""

SCORED_ROWS = 10_000
"""Largest number of rows of each group that the classifier is scored on."""

Group = tuple[Array, Array]
"""Inputs (s, a) and standardised residuals of some rows: (n, I) and (n, D)."""

_LIMIT = 8.0  # standardised residuals are clipped to this range, so that a single one cannot decide


@dataclass(frozen=True)
class FitOptions:
    """Seed, device and thread pool of all fits. Independent networks are fitted at the same time."""

    seed: int
    device: torch.device | str
    pool: Executor


@dataclass(frozen=True, eq=False)
class Parts:
    """The rows to compare. `real` and `synthetic` are the rows that the lesson was learned from, in the same order."""

    real: Transitions
    synthetic: Transitions
    held_out: Transitions
    episodes: Array | None = None
    """Episode number of each real row, if it is known."""
    synthetic_episodes: Array | None = None
    """Episode number of each synthetic row, if it is known."""


def figures(features: Features, lesson: Lesson, parts: Parts, options: FitOptions) -> dict[str, Figure]:
    """Return `outcome_spread`, `band_50`, `band_90` and `outcome_information` of the random columns.

    The result is empty if no column is random.
    """
    seed, device, submit = options.seed, options.device, options.pool.submit
    chosen = submit(random_columns, features, lesson, parts.real, seed=seed, device=device)
    fitted = submit(OutcomeModel.fit, features, lesson, parts.real, seed=seed, device=device)
    noisy, model = chosen.result(), fitted.result()
    if not noisy.any():
        return {}
    rows = parts.real, parts.synthetic, parts.held_out
    real, synthetic, held_out = (model.standardised(part)[:, noisy] for part in rows)
    classified = submit(information, *_groups(features, parts, (real, synthetic, held_out)), seed=seed, device=device)
    around_own_mean = model.standardised(parts.synthetic, lesson.synthetic)[:, noisy]
    names = [name for name, random in zip(_outcome_names(parts.real), noisy, strict=True) if random]
    known = parts.episodes, parts.synthetic_episodes
    ratio, error = spread_ratio(real, around_own_mean, *known)
    around_real_mean, _ = spread_ratio(real, synthetic, *known)
    ratio = not_wider(ratio, around_real_mean)
    at = furthest(ratio, error)
    ratio_real, error_real = spread_ratio(real, held_out)
    at_real = furthest(ratio_real, error_real)
    value = float(ratio[at])
    spread = Figure(value, float(ratio_real[at_real]), 2 * float(error[at]) * value, names[at])
    (bits, chance), (bits_real, _) = classified.result()
    information_figure = Figure(bits, bits_real, chance)
    return {"outcome_spread": spread, **_bands(real, synthetic, held_out), "outcome_information": information_figure}


def _bands(real: Array, synthetic: Array, held_out: Array) -> dict[str, Figure]:
    """Return the prediction intervals, from standardised residuals around the mean learned from real rows."""
    result = {}
    for name, share in BANDS.items():
        (within, off), (within_real, off_real) = (inside(real, part, share) for part in (synthetic, held_out))
        result[name] = Figure(within, within_real, 2 * math.hypot(off, off_real))
    return result


def _outcome_names(rows: Transitions) -> list[str]:
    return [*(f"next_observation[{at}]" for at in range(rows.observation.shape[1])), "reward"]


def _groups(features: Features, parts: Parts, z: tuple[Array, Array, Array]) -> tuple[list[Group], list[Group]]:
    """Return the groups that the classifiers of `information` learn from, and those they are scored on.

    No row is in two groups.
    """
    rows, unseen = len(parts.real), len(parts.held_out)
    scored = min(SCORED_ROWS, unseen // 2, rows // 3)
    half = rows // 2

    def group(number: int, start: int, count: int) -> Group:
        part = slice(start, start + count)
        of = (parts.real, parts.synthetic, parts.held_out)[number]
        return features.decision(of[part]), z[number][part]

    learned = [group(0, 0, half), group(1, scored, half), group(0, half, half)]
    return learned, [group(2, 0, scored), group(1, 0, scored), group(2, scored, scored)]


@dataclass(frozen=True, eq=False)
class OutcomeModel:
    """Networks that predict mean and std of each outcome column given (s, a), learned from real rows."""

    features: Features
    means: Networks
    scales: Networks
    typical: Array
    """Root mean square residual of each column. (D,)"""

    @classmethod
    def fit(
        cls, features: Features, lesson: Lesson, real: Transitions, *, seed: int, device: torch.device | str = "cpu"
    ) -> OutcomeModel:
        """Fit the networks of the stds. `real` are the rows that the lesson was learned from, in the same order."""
        residual = residuals(lesson.networks, features, real)
        typical = np.sqrt(np.square(residual).mean(axis=0))
        typical[typical == 0] = 1.0
        target = np.clip(residual / typical, -_LIMIT, _LIMIT).astype(np.float32)
        draws = [[rows] for rows in usefulness.seen(len(real))]
        scales = learners.fit(
            features.decision(real), target, draws, learners.scales, seed=seed, device=device, effort=EFFORT
        )
        return cls(features, lesson.networks, scales, typical)

    def standardised(self, rows: Transitions, means: Networks | None = None) -> Array:
        """Return the standardised residual of each outcome. (n, D)

        Residuals are around the mean of real rows, or around that of other `means`. The unit is always the std that was
        learned from real rows.
        """
        residual = residuals(means or self.means, self.features, rows)
        logs = _unseen(self.scales.predict(self.features.decision(rows)))
        scaled: Array = np.clip(residual / (self.typical * np.exp(np.clip(logs, -6, 6))), -_LIMIT, _LIMIT)
        return scaled


def residuals(networks: Networks, features: Features, rows: Transitions) -> Array:
    """Return outcomes minus their predictions, in stds of the real outcomes. (n, D)

    The prediction of a row comes from the member that has not learned from it.
    """
    residual: Array = features.outcome(rows).astype(np.float64) - _unseen(networks.predict(features.decision(rows)))
    return residual


def _unseen(answers: Array) -> Array:
    """Select for each row the answer of the member that has not seen it. (members, n, D) to (n, D)"""
    members, count, _ = answers.shape
    chosen: Array = answers[usefulness.fold(count, members), np.arange(count)]
    return chosen


def random_columns(
    features: Features, lesson: Lesson, real: Transitions, *, seed: int, device: torch.device | str = "cpu"
) -> Array:
    """Return which outcome columns are random given (s, a), and not only hard to predict. (D,) booleans

    The error of a network of the lesson is compared with that of a network trained for half as long, on rows that
    neither has seen. If longer training hardly helps, the error is noise.
    """
    inputs, outcome = features.decision(real), features.outcome(real)
    draws = [usefulness.seen(len(real))[:1]]
    shorter = learners.fit(inputs, outcome, draws, learners.squared, seed=seed, device=device, effort=0.5)
    unseen = usefulness.fold(len(real), usefulness.MEMBERS) == 0
    errors = [
        np.square(outcome[unseen] - networks.predict(inputs[unseen])[0], dtype=np.float64).mean(axis=0)
        for networks in (lesson.networks, shorter)
    ]
    unexplained = errors[0] >= NOISE_SHARE * np.maximum(outcome.var(axis=0, dtype=np.float64), 1e-12)
    varies = np.append(features.changes.varies, features.rewards.varies)
    random: Array = varies & unexplained & (errors[0] >= (1 - MOST_GAIN) * errors[1])
    return random


def spread_ratio(
    real: Array, others: Array, episodes: Array | None = None, other_episodes: Array | None = None
) -> tuple[Array, Array]:
    """Return the root mean square of `others` (m, D) divided by that of `real` (n, D), and the standard error of its
    logarithm. Both are (D,).

    `episodes` (n,) and `other_episodes` (m,) are the episode numbers of the rows, if they are known. Range 0 to
    infinity. 1 is right, less than 1 is too narrow.
    """
    squares = [np.square(part) for part in (real, others)]
    means = [np.maximum(part.mean(axis=0), 1e-12) for part in squares]
    errors = [
        standard_error(part, own) / mean
        for part, own, mean in zip(squares, (episodes, other_episodes), means, strict=True)
    ]
    return np.sqrt(means[1] / means[0]), np.hypot(*errors) / 2


def not_wider(ratio: Array, around_real_mean: Array) -> Array:
    """Return the `ratio` (D,) of residuals around own means, but no more than that of residuals around the real mean.

    Where an outcome is hardly random, such as a number of lives far from any danger, the unit is as small as the errors
    of the networks of real rows. Networks of other rows err in other places, and their residuals look wide.
    """
    return np.where(ratio > 1, np.clip(around_real_mean, 1, ratio), ratio)


def furthest(ratio: Array, error: Array) -> int:
    """Return the column with the ratio furthest from 1 on a logarithmic scale, less two standard errors."""
    return int(np.argmax(np.abs(np.log(np.maximum(ratio, 1e-6))) - 2 * error))


def inside(real: Array, others: Array, share: float) -> tuple[float, float]:
    """Return the share of `others` (m, D) inside the interval that contains the middle `share` of `real` (n, D), as a
    mean over columns, and its standard error.

    Range 0 to 1. The best value is that of other real rows, about `share`. A larger value means that `others` are too
    narrow, a smaller one that they are too wide or off centre.
    """
    low, high = np.quantile(real, [(1 - share) / 2, (1 + share) / 2], axis=0)
    each = ((others >= low) & (others <= high)).mean(axis=1)
    return float(each.mean()), float(standard_error(each))


def information(
    fitted: Sequence[Group],
    scored: Sequence[Group],
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[tuple[float, float]]:
    """Return, for each group after the first, how many bits the outcome gives a classifier that separates it from the
    first group and already knows (s, a); and two standard errors.

    A group is a pair of (s, a) and z, (n, I) and (n, D). Two networks learn to separate groups, one from (s, a) and z,
    the other one from (s, a) alone. The figure is the difference of their log losses. So a different distribution of
    (s, a) in the groups does not count. Range 0 (the same distribution of outcomes) to 1 (every outcome reveals its
    group).
    """
    learned = [_inputs(*group) for group in fitted]
    edges = np.cumsum([0, *(len(part) for part in learned)])
    pools = [np.arange(start, end) for start, end in pairwise(edges)]
    halves = [(pool[: len(pool) // 2], pool[len(pool) // 2 :]) for pool in pools]
    draws = [[halves[0][blind], other[blind]] for other in halves[1:] for blind in (0, 1)]
    target = (np.arange(edges[-1]) >= edges[1]).astype(np.float32)[:, None]
    networks = learners.fit(
        np.concatenate(learned), target, draws, learners.flags, seed=seed, device=device, effort=EFFORT
    )
    results = []
    for number, group in enumerate(scored[1:]):
        gains = []
        for rows, sign in ((scored[0], -1.0), (group, 1.0)):
            both, alone = np.split(_inputs(*rows), 2)
            logits = [networks.predict(part)[2 * number + blind, :, 0] for blind, part in enumerate((both, alone))]
            losses = [np.logaddexp(0.0, -sign * part.astype(np.float64)) / np.log(2) for part in logits]
            gains.append(losses[1] - losses[0])
        mean = float(np.mean([gain.mean() for gain in gains]))
        error = float(np.sqrt(sum(gain.var() / len(gain) for gain in gains)) / 2)
        results.append((float(np.clip(mean, 0.0, 1.0)), 2 * error))
    return results


def _inputs(decision: Array, outcome: Array) -> Array:
    """Return the inputs of the classifiers: every row with its outcome, then every row without it. (2 n, I + 2 D)

    The outcome is given together with its absolute value. A narrower distribution differs in absolute values, and a
    small network cannot learn them in a few steps.
    """
    both = np.hstack([decision, outcome, np.abs(outcome)]).astype(np.float32)
    alone = both.copy()
    alone[:, decision.shape[1] :] = 0.0
    return np.concatenate([both, alone])
