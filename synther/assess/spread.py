"""How far outcomes scatter when (s, a) is given: standard deviation, prediction bands, and what a classifier sees.

Networks fitted on real rows predict the mean of each outcome column (s' - s and r), others the size of what is left.
An outcome less its mean, divided by that size, is its standardised residual z. A network never predicts a row that it
has learned from, and synthetic and real rows are treated alike, so that the networks' own errors cancel in a ratio.

Only columns that are random count. An error that is the networks' own falls when they are trained longer; the noise of
an environment stays.
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
from synther.assess.learners import Networks
from synther.assess.metrics import Figure
from synther.assess.usefulness import Lesson
from synther.data.transitions import Transitions

Array = NDArray[Any]

FEWEST_ROWS = 500
"""Rows of either side below which nothing is said about spread."""

NOISE_SHARE = 0.003
"""Share of an outcome's variance that networks must leave unexplained for the column to count as random."""

MOST_GAIN = 0.15
"""A column whose squared error falls by more than this share when networks train for twice as long is not random: its
error is the networks' own."""

EFFORT = 0.5
"""Steps of the networks that tell the size of residuals, as a share of the usual number."""

BANDS = {"band_50": 0.5, "band_90": 0.9}
"""Shares of real outcomes that the prediction bands hold."""

SCORED_ROWS = 10_000
"""Rows of each side that the classifier is asked about."""

Group = tuple[Array, Array]
"""(s, a) and standardised residuals of some rows: (n, I) and (n, D)."""

_LIMIT = 8.0  # standardised residuals are cut here, or a single one could decide


@dataclass(frozen=True)
class How:
    """How networks are fitted, side by side where that is possible."""

    seed: int
    device: torch.device | str
    pool: Executor


@dataclass(frozen=True, eq=False)
class Parts:
    """The rows. `real` and `synthetic` have the same length and order as in the lesson that was learned from them."""

    real: Transitions
    synthetic: Transitions
    held_out: Transitions


def figures(features: Features, lesson: Lesson, parts: Parts, how: How) -> dict[str, Figure]:
    """`outcome_spread`, the prediction bands and `outcome_information` of the random columns; nothing where no column
    is random."""
    seed, device, submit = how.seed, how.device, how.pool.submit
    chosen = submit(random_columns, features, lesson, parts.real, seed=seed, device=device)
    fitted = submit(OutcomeModel.fit, features, lesson, parts.real, seed=seed, device=device)
    noisy, model = chosen.result(), fitted.result()
    if not noisy.any():
        return {}
    rows = parts.real, parts.synthetic, parts.held_out
    real, synthetic, held_out = (model.standardised(part)[:, noisy] for part in rows)
    told = submit(information, *_groups(features, parts, (real, synthetic, held_out)), seed=seed, device=device)
    own = model.standardised(parts.synthetic, lesson.synthetic)[:, noisy]
    names = [name for name, random in zip(_outcome_names(parts.real), noisy, strict=True) if random]
    found = _of_random_columns(names, own, real, synthetic, held_out)
    (bits, chance), (bits_real, _) = told.result()
    return {**found, "outcome_information": Figure(bits, bits_real, chance)}


def _of_random_columns(
    names: list[str], own: Array, real: Array, synthetic: Array, held_out: Array
) -> dict[str, Figure]:
    """`own` are standardised residuals of synthetic rows around their own mean, the others around the real one."""
    ratio, error = spread_ratio(real, own)
    ratio_real, error_real = spread_ratio(real, held_out)
    at, at_real = furthest(ratio, error), furthest(ratio_real, error_real)
    value = float(ratio[at])
    found = {"outcome_spread": Figure(value, float(ratio_real[at_real]), 2 * float(error[at]) * value, names[at])}
    for name, share in BANDS.items():
        (within, off), (within_real, off_real) = (inside(real, part, share) for part in (synthetic, held_out))
        found[name] = Figure(within, within_real, 2 * math.hypot(off, off_real))
    return found


def _outcome_names(rows: Transitions) -> list[str]:
    return [*(f"next_observation[{at}]" for at in range(rows.observation.shape[1])), "reward"]


def _groups(features: Features, parts: Parts, z: tuple[Array, Array, Array]) -> tuple[list[Group], list[Group]]:
    """For `information`: what is learned from and what is asked about. No row is in both."""
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
    """Mean and scale of each outcome column given (s, a), learned from real rows."""

    features: Features
    means: Networks
    scales: Networks
    typical: Array
    """Root mean square residual of each column: (D,)"""

    @classmethod
    def fit(
        cls, features: Features, lesson: Lesson, real: Transitions, *, seed: int, device: torch.device | str = "cpu"
    ) -> OutcomeModel:
        """`real` are the rows that the lesson was learned from, in the same order."""
        left = residuals(lesson.networks, features, real)
        typical = np.sqrt(np.square(left).mean(axis=0))
        typical[typical == 0] = 1.0
        target = np.clip(left / typical, -_LIMIT, _LIMIT).astype(np.float32)
        draws = [[rows] for rows in usefulness.seen(len(real))]
        scales = learners.fit(
            features.decision(real), target, draws, learners.scales, seed=seed, device=device, effort=EFFORT
        )
        return cls(features, lesson.networks, scales, typical)

    def standardised(self, rows: Transitions, means: Networks | None = None) -> Array:
        """z of each outcome (n, D), by the real mean or by other `means`, always in units of the real scale."""
        left = residuals(means or self.means, self.features, rows)
        logs = _unseen(self.scales.predict(self.features.decision(rows)))
        scaled: Array = np.clip(left / (self.typical * np.exp(np.clip(logs, -6, 6))), -_LIMIT, _LIMIT)
        return scaled


def residuals(networks: Networks, features: Features, rows: Transitions) -> Array:
    """Outcomes less what the member that has not seen the row predicts: (n, D), in stds of the real outcomes."""
    left: Array = features.outcome(rows).astype(np.float64) - _unseen(networks.predict(features.decision(rows)))
    return left


def _unseen(answers: Array) -> Array:
    members, count, _ = answers.shape
    chosen: Array = answers[usefulness.fold(count, members), np.arange(count)]
    return chosen


def random_columns(
    features: Features, lesson: Lesson, real: Transitions, *, seed: int, device: torch.device | str = "cpu"
) -> Array:
    """Which outcome columns are random given (s, a), and not only hard to predict: (D,) of booleans.

    A network trained for half as long is compared with one of the lesson on rows that neither has seen.
    """
    inputs, outcome = features.decision(real), features.outcome(real)
    draws = [usefulness.seen(len(real))[:1]]
    shorter = learners.fit(inputs, outcome, draws, learners.squared, seed=seed, device=device, effort=0.5)
    asked = usefulness.fold(len(real), usefulness.MEMBERS) == 0
    errors = [
        np.square(outcome[asked] - networks.predict(inputs[asked])[0], dtype=np.float64).mean(axis=0)
        for networks in (lesson.networks, shorter)
    ]
    unexplained = errors[0] >= NOISE_SHARE * np.maximum(outcome.var(axis=0, dtype=np.float64), 1e-12)
    varies = np.append(features.changes.varies, features.rewards.varies)
    random: Array = varies & unexplained & (errors[0] >= (1 - MOST_GAIN) * errors[1])
    return random


def spread_ratio(real: Array, others: Array) -> tuple[Array, Array]:
    """Root mean square of `others` (m, D) divided by that of `real` (n, D), column by column, and the standard error
    of its logarithm.

    Range 0 to infinity; 1 is right, less is too narrow.
    """
    squares = [np.square(part) for part in (real, others)]
    means = [np.maximum(part.mean(axis=0), 1e-12) for part in squares]
    variances = [part.var(axis=0) / len(part) / mean**2 for part, mean in zip(squares, means, strict=True)]
    return np.sqrt(means[1] / means[0]), np.sqrt(variances[0] + variances[1]) / 2


def furthest(ratio: Array, error: Array) -> int:
    """The column whose ratio is furthest from 1, two standard errors taken off."""
    return int(np.argmax(np.abs(np.log(np.maximum(ratio, 1e-6))) - 2 * error))


def inside(real: Array, others: Array, share: float) -> tuple[float, float]:
    """Mean over columns of the share of `others` (m, D) in the band that holds the middle `share` of `real` (n, D), and
    its standard error.

    Range 0 to 1; best is what other real rows reach, about `share`. More is too narrow, less too wide or off centre.
    """
    low, high = np.quantile(real, [(1 - share) / 2, (1 + share) / 2], axis=0)
    each = ((others >= low) & (others <= high)).mean(axis=1)
    return float(each.mean()), float(each.std() / math.sqrt(len(each)))


def information(
    fitted: Sequence[Group],
    scored: Sequence[Group],
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[tuple[float, float]]:
    """How many bits an outcome adds to what (s, a) tells about whether a row is of the first group or of another, for
    each of the others; and two standard errors of it.

    A group is a pair of (s, a) and z, (n, I) and (n, D). Two networks learn to tell groups apart, one from both parts
    and one from (s, a) alone; what the former gains is the figure. So (s, a) may be distributed differently in the
    groups without counting. Range 0 (outcomes are distributed alike) to 1 (an outcome gives every row away).
    """
    learned = [_told(*group) for group in fitted]
    edges = np.cumsum([0, *(len(part) for part in learned)])
    pools = [np.arange(start, end) for start, end in pairwise(edges)]
    halves = [(pool[: len(pool) // 2], pool[len(pool) // 2 :]) for pool in pools]
    draws = [[halves[0][blind], other[blind]] for other in halves[1:] for blind in (0, 1)]
    target = (np.arange(edges[-1]) >= edges[1]).astype(np.float32)[:, None]
    networks = learners.fit(
        np.concatenate(learned), target, draws, learners.flags, seed=seed, device=device, effort=EFFORT
    )
    found = []
    for number, group in enumerate(scored[1:]):
        gains = []
        for asked, sign in ((scored[0], -1.0), (group, 1.0)):
            both, alone = np.split(_told(*asked), 2)
            logits = [networks.predict(part)[2 * number + blind, :, 0] for blind, part in enumerate((both, alone))]
            losses = [np.logaddexp(0.0, -sign * part.astype(np.float64)) / np.log(2) for part in logits]
            gains.append(losses[1] - losses[0])
        mean = float(np.mean([gain.mean() for gain in gains]))
        error = float(np.sqrt(sum(gain.var() / len(gain) for gain in gains)) / 2)
        found.append((float(np.clip(mean, 0.0, 1.0)), 2 * error))
    return found


def _told(decision: Array, outcome: Array) -> Array:
    """The inputs of a network: every row with its outcome, then every row without it. (2 n, I + 2 D)

    Sizes stand beside values: a narrower law differs in them, and a small network learns no squares in a few steps.
    """
    both = np.hstack([decision, outcome, np.abs(outcome)]).astype(np.float32)
    alone = both.copy()
    alone[:, decision.shape[1] :] = 0.0
    return np.concatenate([both, alone])
