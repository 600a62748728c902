"""Measure how consistent rows are with a model of the dynamics, and filter inconsistent rows.

Example: a generated walker jumps further in one step than any real walker. The dynamics model (dynamics.py) predicts
the next observation with a mean and a std, and measures a large distance from the mean, a *surprise*. `Consistency`
turns the surprises of a row into one score, by comparison with the surprises of held-out real rows.

The filter must not remove randomness. Some real rows are also far from their prediction, by chance. So `Filter`
compares the distribution of the scores of synthetic rows with that of real rows. It discards rows with a score that is
more frequent among synthetic rows than among real rows. If this is not enough for the requested share, it discards the
rest at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError

Array = NDArray[Any]

LEAST_KEPT = 0.05
"""Minimum share of rows to keep."""
_POINTS = 257
"""Number of quantiles that a `Tails` stores for each column."""
_BINS = np.concatenate([np.linspace(0, 0.9, 19)[1:], [0.925, 0.95, 0.97, 0.98, 0.99, 0.995]])
"""Boundaries of the bins of scores, as quantiles of synthetic rows. Bins are narrower for the least consistent rows."""
_ERRORS = 2.0
"""An excess of synthetic rows in a bin counts only beyond this many standard errors."""
_UNSEEN = 3.0
"""Upper bound of the number of real rows in a bin in which none was seen (the rule of three)."""


@dataclass(frozen=True, eq=False)
class Tails:
    """The distribution of columns of nonnegative values among real rows. It converts a value to nats: minus the log of
    the share of real rows with at least this value."""

    points: Array
    """The values that a share exp(-level) of the real rows reach, at `_POINTS` levels from 0 to log(rows). (C, P)"""
    rows: int
    """Number of real rows."""

    @classmethod
    def of(cls, values: Array) -> Tails:
        """Measure the distribution of the values of real rows (H, C)."""
        shares = 1 - np.exp(-_levels(len(values)))
        return cls(np.quantile(values, shares, axis=0).T.astype(np.float64), len(values))

    def nats(self, values: Array, draw: Array | None = None) -> Array:
        """Return -log of the share of real rows with at least this value. (N, C)

        For a value above the highest real one, the result grows slowly with the value. If many real rows have the same
        value, a uniform number in `draw` (N, C) selects one of the ranks of these rows. So the results of real rows
        have an exponential distribution even with ties.
        """
        levels, result = _levels(self.rows), np.empty(values.shape)
        for column, points in enumerate(self.points):
            value = values[:, column]
            first = np.searchsorted(points, value, "left")
            last = np.searchsorted(points, value, "right") - 1
            tied = last > first
            nats = np.interp(value, points, levels)
            nats[tied] = levels[first[tied]]
            if draw is not None and tied.any():
                most = np.exp(-levels[first[tied]])
                least = np.where(last[tied] == len(levels) - 1, 0.0, np.exp(-levels[last[tied]]))
                nats[tied] = -np.log(least + (most - least) * (1 - draw[tied, column]))
            scale = max(points[-1] - points[_POINTS * 3 // 4], 1e-3 * points[-1], 1e-3)
            beyond = np.maximum(value - points[-1], 0.0) / scale
            result[:, column] = nats + 2 * np.log1p(beyond)
        return result


@dataclass(frozen=True, eq=False)
class Consistency:
    """Converts the surprises of the outcomes of each row (N, C) to one score, which has the same distribution in every
    data set of real rows."""

    columns: Tails
    """The distribution of the surprises of held-out real rows."""
    total: Tails
    """The distribution of their totals, see `_total`."""

    @classmethod
    def of(cls, surprises: Array) -> Consistency:
        """Measure the surprises of held-out real rows (H, C)."""
        columns = Tails.of(surprises)
        return cls(columns, Tails.of(_total(columns.nats(surprises))))

    @property
    def rows(self) -> int:
        return self.columns.rows

    def scores(self, surprises: Array, draw: Array) -> tuple[Array, Array]:
        """Return the score of each row and the outcome that contributes most to it, both (N,).

        A score is -log of the share of real rows that are at most as consistent as this row. Among real rows it has an
        exponential distribution with mean 1. `draw` (N,), uniform from 0 to 1, decides between ties.
        """
        nats = self.columns.nats(surprises)
        return self.total.nats(_total(nats), draw[:, None])[:, 0], nats.argmax(1)

    def arrays(self) -> dict[str, Array]:
        return {"columns": self.columns.points, "total": self.total.points}


@dataclass(frozen=True, eq=False)
class Filter:
    """The probability with which a row is kept, as a function of its score and terminal flag."""

    edges: Array
    """Scores at the boundaries of the bins. (B - 1,)"""
    chances: Array
    """The probability that a row is kept, for each bin: first for rows that are not terminal, then for terminal rows.
    (2, B)"""
    base: tuple[float, float]
    """The same probabilities for rows that are as consistent as real rows."""

    @classmethod
    def of(cls, scores: Array, terminal: Array, keep: float, real_rows: int, real_rate: float) -> Filter:
        """Fit a filter that keeps a share `keep` of rows like those with these `scores` and terminals (N,).

        `real_rows` is the number of held-out real rows behind the scores, and `real_rate` the share of terminals among
        real rows. A generator is worst at rare rows, so terminals would be discarded more often than other rows. To
        prevent this, terminals keep their share, or the real share if that is smaller.
        """
        edges = np.unique(np.quantile(scores, _BINS))
        synthetic = np.stack(  # share of the synthetic rows in each bin (2, B), not terminal and terminal
            [np.bincount(np.searchsorted(edges, part, "right"), minlength=len(edges) + 1) / len(scores)
             for part in (scores[~terminal], scores[terminal])]
        )  # fmt: skip
        real = -np.diff(np.exp(-np.concatenate([[0.0], edges, [np.inf]])))  # share of the real rows in each bin
        ratio = _real_to_synthetic(real, synthetic.sum(0) * len(scores), real_rows)
        factor = _factor(synthetic.sum(0), ratio, keep)
        factors, rate = (factor, factor), float(synthetic[1].sum())
        least = min(rate, real_rate) * keep
        if 0 < rate < 1 and synthetic[1] @ np.minimum(1.0, factor * ratio) < least:
            factors = _factor(synthetic[0], ratio, keep - least), _factor(synthetic[1], ratio, least)
        chances = [np.minimum(1.0, each * ratio) for each in factors]
        return cls(edges, np.stack(chances), (min(1.0, factors[0]), min(1.0, factors[1])))

    def chance(self, scores: Array, terminal: Array) -> Array:
        """Return the probability with which each row is kept. (N,)"""
        chances: Array = self.chances[terminal.astype(np.int64), np.searchsorted(self.edges, scores, "right")]
        return chances


def _factor(synthetic: Array, ratio: Array, keep: float) -> float:
    """Return the factor with which a share `keep` of the rows is kept, if a bin is kept with probability
    min(1, factor * ratio). `synthetic` are the shares of the rows in the bins. Found by bisection."""
    low, high = -10.0, 100.0  # bounds of the logarithm of the factor
    for _ in range(100):
        middle = (low + high) / 2
        kept = float(synthetic @ np.minimum(1.0, np.exp(middle) * ratio))
        low, high = (middle, high) if kept < keep else (low, middle)
    return float(np.exp(low))


def check_keep(keep: float) -> float:
    """Check the option `keep` of `Synthesizer.sample`."""
    if not isinstance(keep, (int, float, np.number)) or not LEAST_KEPT <= keep <= 1:
        raise ConfigError(f"keep is the share of rows to keep: expected a number from {LEAST_KEPT} to 1, got {keep!r}")
    return float(keep)


def _levels(rows: int) -> Array:
    """Return the levels at which `Tails` stores values, from 0 to log(rows)."""
    return np.linspace(0.0, np.log(max(rows, 2)), _POINTS)


def _total(nats: Array) -> Array:
    """Sum the squared nats of all outcomes of a row (N, 1). Because of the square, one very unusual outcome counts as
    much as many slightly unusual ones."""
    total: Array = np.square(nats).sum(1, keepdims=True)
    return total


def _real_to_synthetic(real: Array, synthetic: Array, real_rows: int) -> Array:
    """Estimate the number of real rows per synthetic row in each bin (B,). The result is at most 1 and never rises with
    the score, so rows are never discarded for being too consistent.

    `real` are the shares of real rows in the bins, and `synthetic` the numbers of synthetic rows. Neighbouring bins
    that break the order are pooled (isotonic regression). Each ratio is an upper confidence limit, so that bins without
    a significant excess keep all rows. Because of the order, the limit of a pool is at most that of this pool together
    with any number of the pools before it.
    """
    pools: list[list[float]] = []  # for each pool: share of real rows, number of synthetic rows, number of bins
    for share, count in zip(real.tolist(), synthetic.tolist(), strict=True):
        pools.append([share, count, 1])
        while len(pools) > 1 and pools[-1][0] * pools[-2][1] >= pools[-2][0] * pools[-1][1]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    ratios: list[float] = []
    for place, (_, _, bins) in enumerate(pools):
        least, share, count = 1.0, 0.0, 0.0
        for other in reversed(pools[: place + 1]):
            share, count = share + other[0], count + other[1]
            error = np.sqrt(share / real_rows + share**2 / max(count, 1.0))
            upper = share + _ERRORS * error + _UNSEEN / real_rows
            least = min(least, float(upper * synthetic.sum() / max(count, 1.0)))
        ratios += [least] * int(bins)
    return np.minimum.accumulate(ratios)
