"""How far two samples are apart."""

from __future__ import annotations

import numpy as np


def furthest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between their shares below any value: the statistic of Kolmogorov and Smirnov."""
    every = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(values), every, side="right") / len(values) for values in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())
