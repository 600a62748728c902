"""Ones of a generated 0/1 column as often as in the real rows: where to cut it, and what to do where no cut helps.

A good generator makes values close to 0 and close to 1 and nothing between, so that every cut gives the same rate: its
own, which for rare events is too low. Cutting into the noise around 0 would label random rows; taking some of the
events twice corrects the rate and keeps the labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError

NEUTRAL = 0.5
LOWEST, HIGHEST = 0.05, 0.95
_FEWEST = 10


def calibrate(real: NDArray[Any], generated: NDArray[Any]) -> float:
    """The threshold above which round(rate * m) of the m raw `generated` values lie, `rate` being the mean of `real`.

    NOTE[paper]: the paper cuts terminals at 0.5, where rare ones come out too rare. A rate that leaves fewer than
    ten generated values on one side cannot be resolved: that gives 0.5. The threshold stays in [0.05, 0.95], so that
    a poor generator is not made to look right by calling noise an event.
    """
    if real.ndim != 1 or generated.ndim != 1 or not len(real) or not len(generated):
        raise DataError(f"calibrate: expected two columns with rows, got shapes {real.shape} and {generated.shape}")
    if not np.isfinite(generated).all():
        raise DataError("calibrate: a generated value is not finite")
    rate, count = float(np.mean(real, dtype=np.float64)), len(generated)
    if not 0 <= rate <= 1:
        raise DataError(f"calibrate: expected real values of 0 and 1, got a mean of {rate:g}")
    if min(rate, 1 - rate) * count < _FEWEST:
        return NEUTRAL
    first_above = count - round(rate * count)
    ordered = np.partition(generated.astype(np.float64), (first_above - 1, first_above))
    below, above = float(ordered[first_above - 1]), float(ordered[first_above])
    middle = below + (above - below) / 2
    if middle >= above:  # neighbouring floats have nothing between them
        middle = below
    return min(max(middle, LOWEST), HIGHEST)


def odds_ratio(real: NDArray[Any], decided: NDArray[Any]) -> float:
    """How many times the odds of a one among `real` (n,) are those among `decided` (m,), generated and thresholded.

    1 where either side has fewer than ten of a value, and at most 4 (at least 1/4): beyond that rows would be copies.
    """
    rates = [float(np.mean(flags, dtype=np.float64)) for flags in (real, decided)]
    sizes = (len(real), len(decided))
    if any(min(rate, 1 - rate) * size < _FEWEST for rate, size in zip(rates, sizes, strict=True)):
        return 1.0
    wanted, found = rates
    return float(np.clip(wanted * (1 - found) / (found * (1 - wanted)), 0.25, 4.0))


def rebalanced(flags: NDArray[np.bool_], odds: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Which of N rows to take, some of them twice, so that the odds of a set flag are `odds` times what they are. (N,)

    Rows of the side that came out too rare take the places of random rows of the other. Within each side all rows keep
    the same chance, so that only the share of the two sides changes.
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
