"""How consistent rows are with a model of the dynamics, measured by what the model makes of real rows; and a filter.

The filter must not narrow what is random. The rows furthest from a prediction are the wrong ones only where there are
more of them than among real rows. So it compares the scores of synthetic rows with those of held-out real rows, and
discards where synthetic rows are in excess. Where there is no excess, it discards at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError

Array = NDArray[Any]

LEAST_KEPT = 0.05
_POINTS = 257
_BINS = np.concatenate([np.linspace(0, 0.9, 19)[1:], [0.925, 0.95, 0.97, 0.98, 0.99, 0.995]])
"""Where the scores of synthetic rows are cut into bins, as quantiles: finer where rows are least consistent."""
_ERRORS = 2.0
"""An excess counts from so many standard errors on."""
_UNSEEN = 3.0
"""Where none of some real rows is, there may still be so many: the rule of three."""


@dataclass(frozen=True, eq=False)
class Tails:
    """How rare values of some columns are among real rows. Values are at least 0, and higher is rarer."""

    points: Array
    """Values that a share of exp(-level) of the real rows reach, at `_POINTS` levels from 0 to log(rows): (C, P)"""
    rows: int

    @classmethod
    def of(cls, values: Array) -> Tails:
        """From real rows (H, C)."""
        shares = 1 - np.exp(-_levels(len(values)))
        return cls(np.quantile(values, shares, axis=0).T.astype(np.float64), len(values))

    def nats(self, values: Array, draw: Array | None = None) -> Array:
        """-log of the share of real rows with at least this value: (N, C). Beyond the highest one it grows slowly.

        With `draw`, numbers (N, C) from 0 to 1, a value that many real rows share gets one of the shares that they
        take up, so that the answer for real rows has an exponential distribution in any case.
        """
        levels, found = _levels(self.rows), np.empty(values.shape)
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
            found[:, column] = nats + 2 * np.log1p(beyond)
        return found


@dataclass(frozen=True, eq=False)
class Consistency:
    """Scores of rows from the surprises of their outcomes (N, C), made comparable by held-out real rows."""

    columns: Tails
    total: Tails

    @classmethod
    def of(cls, surprises: Array) -> Consistency:
        columns = Tails.of(surprises)
        return cls(columns, Tails.of(_total(columns.nats(surprises))))

    @property
    def rows(self) -> int:
        return self.columns.rows

    def scores(self, surprises: Array, draw: Array) -> tuple[Array, Array]:
        """The score of each row and the outcome that adds most to it, both (N,).

        A score is -log of the share of real rows that are at most as consistent; its distribution over real rows is
        exponential with mean 1. `draw` (N,), from 0 to 1, decides between rows that are equally consistent.
        """
        nats = self.columns.nats(surprises)
        return self.total.nats(_total(nats), draw[:, None])[:, 0], nats.argmax(1)

    def arrays(self) -> dict[str, Array]:
        return {"columns": self.columns.points, "total": self.total.points}


@dataclass(frozen=True, eq=False)
class Filter:
    """How likely rows are kept, by their scores: `keep` on average."""

    edges: Array
    """Scores between the bins: (B - 1,)"""
    chances: Array
    """For each bin, of rows that end no episode and of those that do: (2, B)"""
    base: tuple[float, float]
    """Of both, for rows that are as consistent as real ones."""

    @classmethod
    def of(cls, scores: Array, terminal: Array, keep: float, real_rows: int, real_rate: float) -> Filter:
        """From `scores` and terminals of synthetic rows (N,), how many real rows the scores were made comparable by,
        and the share of terminals among real rows.

        A generator is worst at rare rows, so terminals would be discarded more often than others. They are not, as far
        as there are not more of them than in real rows.
        """
        edges = np.unique(np.quantile(scores, _BINS))
        made = np.stack(
            [np.bincount(np.searchsorted(edges, part, "right"), minlength=len(edges) + 1) / len(scores)
             for part in (scores[~terminal], scores[terminal])]
        )  # fmt: skip
        real = -np.diff(np.exp(-np.concatenate([[0.0], edges, [np.inf]])))  # share of the real rows in each bin
        ratio = _real_to_made(real, made.sum(0) * len(scores), real_rows)
        factor = _factor(made.sum(0), ratio, keep)
        factors, rate = (factor, factor), float(made[1].sum())
        least = min(rate, real_rate) * keep
        if 0 < rate < 1 and made[1] @ np.minimum(1.0, factor * ratio) < least:
            factors = _factor(made[0], ratio, keep - least), _factor(made[1], ratio, least)
        chances = [np.minimum(1.0, each * ratio) for each in factors]
        return cls(edges, np.stack(chances), (min(1.0, factors[0]), min(1.0, factors[1])))

    def chance(self, scores: Array, terminal: Array) -> Array:
        """(N,)"""
        found: Array = self.chances[terminal.astype(np.int64), np.searchsorted(self.edges, scores, "right")]
        return found


def _factor(made: Array, ratio: Array, keep: float) -> float:
    """By which to multiply ratios, so that this share of all rows is kept of those in the bins."""
    low, high = -10.0, 100.0  # its logarithm
    for _ in range(100):
        middle = (low + high) / 2
        kept = float(made @ np.minimum(1.0, np.exp(middle) * ratio))
        low, high = (middle, high) if kept < keep else (low, middle)
    return float(np.exp(low))


def check_keep(keep: float) -> float:
    if not isinstance(keep, (int, float, np.number)) or not LEAST_KEPT <= keep <= 1:
        raise ConfigError(f"keep is the share of rows to keep: expected a number from {LEAST_KEPT} to 1, got {keep!r}")
    return float(keep)


def _levels(rows: int) -> Array:
    return np.linspace(0.0, np.log(max(rows, 2)), _POINTS)


def _total(nats: Array) -> Array:
    """One number for each row (N, 1). Squares let one very odd outcome count as well as many slightly odd ones."""
    total: Array = np.square(nats).sum(1, keepdims=True)
    return total


def _real_to_made(real: Array, made: Array, real_rows: int) -> Array:
    """Real rows for each synthetic one in every bin, at most 1, and never more in a bin of higher scores. (B,)

    Neighbours that break this order are pooled. So rows are never discarded for being too consistent. Each ratio is the
    highest one that is likely; because of the order, no pool has a higher one than itself and pools before it together.
    """
    pools: list[list[float]] = []  # real share, synthetic rows, bins
    for share, count in zip(real.tolist(), made.tolist(), strict=True):
        pools.append([share, count, 1])
        while len(pools) > 1 and pools[-1][0] * pools[-2][1] >= pools[-2][0] * pools[-1][1]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    found: list[float] = []
    for place, (_, _, bins) in enumerate(pools):
        least, share, count = 1.0, 0.0, 0.0
        for other in reversed(pools[: place + 1]):
            share, count = share + other[0], count + other[1]
            error = np.sqrt(share / real_rows + share**2 / max(count, 1.0))
            likely = share + _ERRORS * error + _UNSEEN / real_rows
            least = min(least, float(likely * made.sum() / max(count, 1.0)))
        found += [least] * int(bins)
    return np.minimum.accumulate(found)
