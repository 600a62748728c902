"""Values of generated columns as often as in the real rows: where to cut flags, and what to do where no cut helps.

A good generator makes values close to 0 and close to 1 and nothing between, so that every cut gives the same rate: its
own, which for rare events is too low. Cutting into the noise around 0 would label random rows; taking some of the
events twice corrects the rate and keeps the labels. The same goes for rare values of categories and lattices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from synther.data.kinds import Kind
from synther.data.layout import Layout
from synther.data.marginals import Correction, Corrections
from synther.errors import DataError
from synther.schema import checked, finite

NEUTRAL = 0.5
LOWEST, HIGHEST = Kind.lowest_threshold, 0.95
_FEWEST = 10
_LEAST_WEIGHT, _MOST_WEIGHT = 0.25, 4.0  # beyond the latter most rows of a value would be copies
_RAKED = 10  # rounds

Weights = tuple[tuple[float, ...], ...]
"""A number for each value of each group of columns that has few values."""


def calibrate(rate: float, generated: NDArray[Any], neutral: float = NEUTRAL, lowest: float = LOWEST) -> float:
    """The threshold above which round(rate * m) of the m raw `generated` values lie, `rate` being that of real rows.

    NOTE[paper]: the paper cuts terminals at 0.5, where rare ones come out too rare. A rate that leaves fewer than
    ten generated values on one side cannot be resolved: that gives `neutral`. The threshold stays in [lowest, 0.95], so
    that a poor generator is not made to look right by calling noise an event.
    """
    if not 0 <= rate <= 1:
        raise DataError(f"calibrate: expected a rate between 0 and 1, got {rate:g}")
    if generated.ndim != 1 or not len(generated):
        raise DataError(f"calibrate: expected a column with rows, got shape {generated.shape}")
    if not np.isfinite(generated).all():
        raise DataError("calibrate: a generated value is not finite")
    count = len(generated)
    if min(rate, 1 - rate) * count < _FEWEST:
        return neutral
    first_above = count - round(rate * count)
    ordered = np.partition(generated.astype(np.float64), (first_above - 1, first_above))
    below, above = float(ordered[first_above - 1]), float(ordered[first_above])
    middle = below + (above - below) / 2
    if middle >= above:  # neighbouring floats have nothing between them
        middle = below
    return min(max(middle, lowest), HIGHEST)


def believed(rate: float, found: float, count: int) -> float:
    """The rate to aim at where the real rows have `rate`, and `count` generated ones `found`: the real one, except for
    what chance explains of the difference."""
    if not 0 < rate < 1:
        return rate
    wanted, seen = (rate, found) if rate <= 0.5 else (1 - rate, 1 - found)
    seen = max(seen, 1 / count)
    aim = seen * math.exp(float(_beyond_chance(math.log(wanted / seen), 1 / (seen * count))))
    return aim if rate <= 0.5 else 1 - aim


def _beyond_chance(off: Any, chance: Any) -> Any:
    """As much of a difference as chance, which has this variance, does not explain (James and Stein 1961)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(off == 0, 0.0, off * np.maximum(0, 1 - chance / np.square(off)))


def odds_ratio(rate: float, decided: NDArray[Any], weight: NDArray[np.float64] | None = None) -> float:
    """How many times the odds of a one in real rows, which have `rate`, are those among `decided` (m,), generated, of
    which each counts as its `weight`.

    1 where fewer than ten of the m values are on one side or should be. The rarer side is raised 4 times at most, since
    beyond that most of its rows would be copies, and lowered 20 times at most.
    """
    found, count = float(np.average(decided, weights=weight)), len(decided)
    if any(min(share, 1 - share) * count < _FEWEST for share in (rate, found)):
        return 1.0
    least, most = (0.05, 4.0) if found <= 0.5 else (0.25, 20.0)
    return float(np.clip(rate * (1 - found) / (found * (1 - rate)), least, most))


def rebalanced(flags: NDArray[np.bool_], odds: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Which of N rows to take, some of them twice, so that the odds of a set flag are `odds` times what they are. (N,)

    Rows of the side that came out too rare take the places of random rows of the other. Within each side all rows keep
    the same chance, so that only the share of the two sides changes.

    NOTE[paper]: the paper leaves the share as the sampler makes it.
    """
    taken = np.arange(len(flags))
    ones, zeros = np.flatnonzero(flags), np.flatnonzero(~flags)
    if odds == 1.0 or not len(ones) or not len(zeros):
        return taken
    wanted = len(flags) * len(ones) * odds / (len(ones) * odds + len(zeros))
    extra = int(np.floor(wanted + draw.random())) - len(ones)
    rare, common = (ones, zeros) if extra > 0 else (zeros, ones)
    places = draw.choice(common, min(abs(extra), len(common)), replace=False)
    taken[places] = draw.choice(rare, len(places))
    return taken


def class_weights(
    shares: Sequence[Sequence[float]],
    real: int,
    classes: NDArray[np.int64],
    weight: NDArray[np.float64] | None = None,
) -> Weights:
    """How likely a row is to be taken for each value of each group, so that values come as often as in real rows.

    `shares` are those of each group's values in `real` rows, `classes` (N, G) the values of generated ones, and
    `weight` (N,) how likely each of these is to be taken before that. Groups are
    brought to their shares in turn, until all are right at once (raking, Deming and Stephan 1940). Both shares are
    known up to chance: of what they differ, what chance explains is left alone. Groups are columns of observation and
    action alone, so that how outcomes follow from these stays as it is.
    """
    count = len(classes)
    before = np.ones(count) if weight is None else weight / weight.mean()
    tables = [np.ones(len(share)) for share in shares]
    found = [np.bincount(column, before, len(share)) for share, column in zip(shares, classes.T, strict=True)]
    wanted, rare = [], []
    for share, seen in zip(map(np.asarray, shares), found, strict=True):
        few = np.minimum(share * real, seen) < _FEWEST
        with np.errstate(divide="ignore", invalid="ignore"):
            off = _beyond_chance(np.log(share * count / seen), 1 / (share * real) + 1 / seen)
        rare.append(few)
        wanted.append(
            np.where(few, 1.0, np.exp(np.where(few, 0.0, off)).clip(_LEAST_WEIGHT, _MOST_WEIGHT)) * seen / count
        )
    for _ in range(_RAKED):
        for group, (share, few) in enumerate(zip(wanted, rare, strict=True)):
            now_weight = before * _row_weights(tables, classes)
            now = np.bincount(classes[:, group], now_weight, len(share)) / now_weight.sum()
            change = np.where(few | (now == 0), 1.0, share / share.sum() / np.where(now == 0, 1.0, now))
            tables[group] = (tables[group] * change).clip(_LEAST_WEIGHT, _MOST_WEIGHT)
    return tuple(tuple(table.tolist()) for table in tables)


def _row_weights(tables: Sequence[NDArray[np.float64]], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    weight = np.ones(len(classes))
    for table, column in zip(tables, classes.T, strict=True):
        weight *= table[column]
    return weight


def resampled(weight: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """Which of N rows to take, each as often as its `weight` (N,) says on average. Most stay in their place. (N,)"""
    ends = np.concatenate([[0.0], np.cumsum(weight / weight.mean())])
    times = np.diff(np.floor(ends + draw.random()).astype(np.int64))
    times[-1] += len(weight) - times.sum()  # rounding of the sum
    taken = np.arange(len(weight))
    extra = np.repeat(taken, np.maximum(times - 1, 0))
    taken[times <= 0] = draw.permutation(extra)[: np.count_nonzero(times <= 0)]
    return taken


@dataclass(frozen=True)
class Calibration:
    """When each generated flag counts as set; how terminals and values of few-valued columns are rebalanced."""

    thresholds: tuple[float, ...]
    terminal_odds: float = 1.0
    """By how much the odds of a terminal row are to be raised over what the generator makes."""
    weights: Weights = ()
    """How likely a row is to be taken for each value of each group of few values; empty where all are alike."""
    regions: Weights = ()
    """How likely a row is to be taken for each part of the world, and for what happens in it; empty where all are."""
    drawn: Weights = ()
    """Mean and std of the number that decides each value which is drawn from a table: 0 and 1 of a good generator."""
    corrections: Corrections = ()
    """What gives columns the real distribution, before anything else."""
    start_corrections: Corrections = ()
    """The same for rows that begin an episode."""
    payout_odds: float = 1.0
    """How likely a row with a payout is to be taken, where one without always is."""

    @property
    def every_correction(self) -> Corrections:
        return self.corrections + self.start_corrections

    def cutting(self, rates: Sequence[float], generated: NDArray[Any], layout: Layout) -> Calibration:
        """The same, with thresholds from the real `rates` of the flags and generated ones (N, F) before any cut."""
        neutral, count = layout.thresholds, len(generated)
        found = [float(np.mean(flags > cut)) for flags, cut in zip(generated.T, neutral, strict=True)]
        aims = [believed(rate, seen, count) for rate, seen in zip(rates, found, strict=True)]
        cuts = tuple(map(calibrate, aims, generated.T, neutral, layout.lowest_thresholds))
        return replace(self, thresholds=cuts)

    def balancing(
        self, rate: float, terminal: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> Calibration:
        """The same, with the odds that bring `terminal` (N,), of rows cut by these thresholds, to the real `rate`.

        `weight` (N,) is how likely each row is to be taken before that.
        """
        aim = believed(rate, float(np.average(terminal, weights=weight)), len(terminal))
        return replace(self, terminal_odds=odds_ratio(aim, terminal, weight))

    def row_weights(self, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """How likely rows are to be taken, whose values are `classes` (N, G). (N,)"""
        return _row_weights([np.array(table) for table in self.weights], classes)

    def to_json(self) -> dict[str, Any]:
        own: dict[str, Any] = {"thresholds": list(self.thresholds), "terminal_odds": self.terminal_odds}
        own |= {} if self.payout_odds == 1 else {"payout_odds": self.payout_odds}
        more = {"weights": self.weights, "regions": self.regions, "drawn": self.drawn}
        own |= {name: [list(table) for table in tables] for name, tables in more.items() if tables}
        moved = {"corrections": self.corrections, "start_corrections": self.start_corrections}
        return own | {name: list(map(asdict, found)) for name, found in moved.items() if found}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Calibration:
        told = checked(entry, _Entry, "calibration")
        thresholds, odds = finite(told["thresholds"], "calibration.thresholds"), told["terminal_odds"]
        paid = told.get("payout_odds", 1.0)
        if not 0 < min(odds, paid) <= max(odds, paid) < np.inf:
            raise DataError(f"terminal_odds and payout_odds: expected positive numbers, got {odds} and {paid}")
        weights, regions = told.get("weights", ()), told.get("regions", ())
        if not all(0 < weight < np.inf for table in (*weights, *regions) for weight in table):
            raise DataError("weights: expected positive numbers")
        drawn = told.get("drawn", ())
        if not all(len(pair) == 2 and np.isfinite(pair).all() and pair[1] > 0 for pair in drawn):
            raise DataError("drawn: expected a mean and a positive std for each")
        moved = told.get("corrections", ()), told.get("start_corrections", ())
        usual, first = (tuple(map(Correction.from_json, found)) for found in moved)
        return cls(thresholds, odds, weights, regions, drawn, usual, first, paid)


class _Entry(TypedDict):
    thresholds: tuple[float, ...]
    terminal_odds: float
    payout_odds: NotRequired[float]
    weights: NotRequired[Weights]
    regions: NotRequired[Weights]
    drawn: NotRequired[Weights]
    corrections: NotRequired[list[Any]]
    start_corrections: NotRequired[list[Any]]
