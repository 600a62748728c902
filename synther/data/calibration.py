"""Ones of a generated 0/1 column as often as in the real rows: where to cut it, and what to do where no cut helps.

A good generator makes values close to 0 and close to 1 and nothing between, so that every cut gives the same rate: its
own, which for rare events is too low. Cutting into the noise around 0 would label random rows; taking some of the
events twice corrects the rate and keeps the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.kinds import Kind
from synther.data.layout import Layout
from synther.errors import DataError

NEUTRAL = 0.5
LOWEST, HIGHEST = Kind.lowest_threshold, 0.95
_FEWEST = 10


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


def odds_ratio(rate: float, decided: NDArray[Any]) -> float:
    """How many times the odds of a one in real rows, which have `rate`, are those among `decided` (m,), generated.

    1 where fewer than ten of the m values are on one side or should be. The rarer side is raised 4 times at most, since
    beyond that most of its rows would be copies, and lowered 20 times at most.
    """
    found, count = float(np.mean(decided, dtype=np.float64)), len(decided)
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


@dataclass(frozen=True)
class Calibration:
    """When each generated flag counts as set; how terminals are rebalanced."""

    thresholds: tuple[float, ...]
    terminal_odds: float = 1.0
    """By how much the odds of a terminal row are to be raised over what the generator makes."""

    @classmethod
    def fit(cls, rates: Sequence[float], generated: NDArray[Any], layout: Layout) -> Calibration:
        """Thresholds from the real `rates` of the flags and generated ones (N, F) before any cut."""
        return cls(tuple(map(calibrate, rates, generated.T, layout.thresholds, layout.lowest_thresholds)))

    def balancing(self, rate: float, terminal: NDArray[np.bool_]) -> Calibration:
        """The same, with the odds that bring `terminal` (N,), of rows cut by these thresholds, to the real `rate`."""
        return replace(self, terminal_odds=odds_ratio(rate, terminal))

    def to_json(self) -> dict[str, Any]:
        return {"thresholds": list(self.thresholds), "terminal_odds": self.terminal_odds}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Calibration:
        thresholds, odds = tuple(map(float, entry["thresholds"])), float(entry["terminal_odds"])
        if not 0 < odds < np.inf:
            raise DataError(f"terminal_odds: expected a positive number, got {odds}")
        return cls(thresholds, odds)
