"""`Calibration`: makes values of generated columns as frequent as in the real rows.

Flags are calibrated by their thresholds. But a good generator makes flags close to 0 or close to 1 and none between, so
every threshold gives the same rate. For rare events, such as terminals, this rate is usually too low. A threshold in
the noise around 0 would mark random rows. Instead some of the rows with the event are taken twice, which corrects the
rate and keeps the labels. Rare values of categories and lattices are corrected in the same way, by importance weights.

`calibrate` finds a threshold, `odds_ratio` the weight of terminals, and `class_weights` the weights of other values.
`resampled` takes rows by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from synther.calibration.marginals import Correction, Corrections
from synther.data.kind import LOWEST_THRESHOLD
from synther.data.layout import Layout
from synther.errors import DataError
from synther.schema import checked, finite

NEUTRAL = 0.5
"""Threshold of a flag that cannot be calibrated."""
HIGHEST = 0.95
"""Upper limit of a threshold."""
_FEWEST = 10  # rows on each side of a flag that are needed to calibrate it
_LEAST_WEIGHT, _MOST_WEIGHT = 0.25, 4.0  # limits of a weight; with a larger one, most rows of a value would be copies
_RAKED = 10  # rounds of raking

Weights = tuple[tuple[float, ...], ...]
"""One tuple for each group of columns, with one weight for each value of the group."""


def calibrate(
    rate: float, generated: NDArray[Any], neutral: float = NEUTRAL, lowest: float = LOWEST_THRESHOLD
) -> float:
    """Return the threshold above which round(rate * m) of the m `generated` flags (m,) lie. `rate` is the rate in real
    rows.

    Return `neutral` if fewer than ten generated values should be on one side, because the threshold would be noise. The
    threshold stays in [lowest, 0.95], so that noise of a poor generator does not count as an event.

    NOTE[paper]: the paper cuts terminals at 0.5, where rare ones come out too rare.
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
    if middle >= above:  # rounding: there is no float between the two
        middle = below
    return min(max(middle, lowest), HIGHEST)


def believed(rate: float, found: float, count: int) -> float:
    """Return the rate to calibrate to, given the `rate` of the real rows and the rate `found` in `count` generated
    rows.

    It is the real rate, shrunk towards the generated one by as much as sampling noise explains of the difference.
    """
    if not 0 < rate < 1:
        return rate
    wanted, seen = (rate, found) if rate <= 0.5 else (1 - rate, 1 - found)
    seen = max(seen, 1 / count)
    aim = seen * math.exp(float(_beyond_chance(math.log(wanted / seen), 1 / (seen * count))))
    return aim if rate <= 0.5 else 1 - aim


def _beyond_chance(difference: Any, variance: Any) -> Any:
    """Shrink a difference towards 0 by the James-Stein factor, given the `variance` of its noise (James and Stein
    1961)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0.0, difference * np.maximum(0, 1 - variance / np.square(difference)))


def odds_ratio(rate: float, decided: NDArray[Any], weight: NDArray[np.float64] | None = None) -> float:
    """Return the odds of a set flag in real rows, which have this `rate`, divided by the odds in generated rows.

    `decided` (m,) are the flags of generated rows, `weight` (m,) their importance weights. Return 1 if fewer than ten
    of the m values are on one side, or should be. The odds of the rarer side are raised at most 4 times, because most
    of its rows would otherwise be copies, and lowered at most 20 times.
    """
    found, count = float(np.average(decided, weights=weight)), len(decided)
    if any(min(share, 1 - share) * count < _FEWEST for share in (rate, found)):
        return 1.0
    least, most = (0.05, 4.0) if found <= 0.5 else (0.25, 20.0)
    return float(np.clip(rate * (1 - found) / (found * (1 - rate)), least, most))


def class_weights(
    shares: Sequence[Sequence[float]],
    real: int,
    classes: NDArray[np.int64],
    weight: NDArray[np.float64] | None = None,
) -> Weights:
    """Return the weight of each value of each group, so that weighted values are as frequent as in the real rows.

    `shares` are the shares of each group's values in the real rows, `real` is the number of these rows, `classes`
    (N, G) are the values of generated rows, and `weight` (N,) are the weights that these rows already have. The weight
    of a row is the product over its groups. Groups are adjusted in turn, several times, until all shares are right
    (raking, Deming and Stephan 1940). Differences are shrunk by as much as sampling noise explains. Groups are columns
    of observation and action only, so the distribution of outcomes given these does not change.
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
    """Return the weight of each row (N,): the product of the weights of its values `classes` (N, G)."""
    weight = np.ones(len(classes))
    for table, column in zip(tables, classes.T, strict=True):
        weight *= table[column]
    return weight


def resampled(weight: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """Return the numbers of the N rows to take (N,), each on average as often as its `weight` (N,) relative to the
    mean.

    This is systematic resampling, in the order of the weights, so that chance hardly changes the share of rows with
    one weight. Rows that are taken stay in their place, and copies fill the places of other rows.
    """
    order = np.argsort(weight, kind="stable")
    ends = np.concatenate([[0.0], np.cumsum(weight[order] / weight.mean())])
    times = np.empty(len(weight), np.int64)
    times[order] = np.diff(np.floor(ends + draw.random()))
    times[order[-1]] += len(weight) - times.sum()  # corrects rounding errors of the sum
    taken = np.arange(len(weight))
    extra = np.repeat(taken, np.maximum(times - 1, 0))
    taken[times <= 0] = draw.permutation(extra)[: np.count_nonzero(times <= 0)]
    return taken


@dataclass(frozen=True)
class Calibration:
    """Everything that corrects the frequencies of generated values, measured on generated rows of one sampler."""

    thresholds: tuple[float, ...]
    """Threshold of each flag of the layout."""
    terminal_odds: float = 1.0
    """Factor by which the odds of a terminal row are multiplied."""
    weights: Weights = ()
    """Importance weight of each value of each group of columns with few values. Empty if all weights are equal."""
    regions: Weights = ()
    """Importance weight of each event in each node of `termination.Regions`. Empty if there are none."""
    drawn: Weights = ()
    """Mean and std of the generated number for each table of the layout. A good generator has 0 and 1."""
    corrections: Corrections = ()
    """Lines that give columns the real distribution. They are applied before anything else."""
    start_corrections: Corrections = ()
    """The same for the first rows of episodes."""
    rare_odds: float = 1.0
    """Importance weight of a rare row, relative to other rows."""
    given_rare_odds: float = 1.0
    """The same for rows with given columns, which have no other weights."""

    @property
    def every_correction(self) -> Corrections:
        """All corrections, of first rows and of other rows."""
        return self.corrections + self.start_corrections

    def cutting(self, rates: Sequence[float], generated: NDArray[Any], layout: Layout) -> Calibration:
        """Return the same calibration with new thresholds, given the real `rates` of the flags and generated flags (N,
        F) before any threshold."""
        neutral, count = layout.thresholds, len(generated)
        found = [float(np.mean(flags > cut)) for flags, cut in zip(generated.T, neutral, strict=True)]
        aims = [believed(rate, seen, count) for rate, seen in zip(rates, found, strict=True)]
        cuts = tuple(map(calibrate, aims, generated.T, neutral, layout.lowest_thresholds))
        return replace(self, thresholds=cuts)

    def balancing(
        self, rate: float, terminal: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> Calibration:
        """Return the same calibration with new `terminal_odds`, which bring generated terminals to the real `rate`.

        `terminal` (N,) are the terminals of generated rows decoded with these thresholds. `weight` (N,) are the
        importance weights of these rows.
        """
        aim = believed(rate, float(np.average(terminal, weights=weight)), len(terminal))
        return replace(self, terminal_odds=odds_ratio(aim, terminal, weight))

    def row_weights(self, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the importance weight (N,) of rows with the values `classes` (N, G)."""
        return _row_weights([np.array(table) for table in self.weights], classes)

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"thresholds": list(self.thresholds), "terminal_odds": self.terminal_odds}
        odds = {"rare_odds": self.rare_odds, "given_rare_odds": self.given_rare_odds}
        entry |= {name: each for name, each in odds.items() if each != 1}
        more = {"weights": self.weights, "regions": self.regions, "drawn": self.drawn}
        entry |= {name: [list(table) for table in tables] for name, tables in more.items() if tables}
        lines = {"corrections": self.corrections, "start_corrections": self.start_corrections}
        return entry | {name: list(map(asdict, found)) for name, found in lines.items() if found}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Calibration:
        stored = checked(entry, _Entry, "calibration")
        thresholds, odds = finite(stored["thresholds"], "calibration.thresholds"), stored["terminal_odds"]
        rare = stored.get("rare_odds", 1.0), stored.get("given_rare_odds", 1.0)
        if not 0 < min(odds, *rare) <= max(odds, *rare) < np.inf:
            raise DataError(f"terminal_odds and rare_odds: expected positive numbers, got {odds} and {rare}")
        weights, regions = stored.get("weights", ()), stored.get("regions", ())
        if not all(0 < weight < np.inf for table in (*weights, *regions) for weight in table):
            raise DataError("weights and regions of a calibration: expected positive numbers")
        drawn = stored.get("drawn", ())
        if not all(len(pair) == 2 and np.isfinite(pair).all() and pair[1] > 0 for pair in drawn):
            raise DataError("drawn of a calibration: expected a mean and a positive std for each table")
        lines = stored.get("corrections", ()), stored.get("start_corrections", ())
        corrections, start_corrections = (tuple(map(Correction.from_json, found)) for found in lines)
        return cls(thresholds, odds, weights, regions, drawn, corrections, start_corrections, *rare)


class _Entry(TypedDict):
    thresholds: tuple[float, ...]
    terminal_odds: float
    rare_odds: NotRequired[float]
    given_rare_odds: NotRequired[float]
    weights: NotRequired[Weights]
    regions: NotRequired[Weights]
    drawn: NotRequired[Weights]
    corrections: NotRequired[list[Any]]
    start_corrections: NotRequired[list[Any]]
