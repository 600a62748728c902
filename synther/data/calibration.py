"""Where to cut a generated 0/1 column so that ones come out as often as in the real rows."""

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
