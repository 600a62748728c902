"""Every column by itself: how alike, where it lies, and its histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Column
from synther.assess.bounds import Bounds
from synther.assess.fidelity import at_most, column_names, matrices_of
from synther.assess.standard import Standard
from synther.data.transitions import Transitions

Array = NDArray[Any]

BINS = 60
MOST_VALUES = 60
"""Columns of whole numbers that span at most so many are drawn as one bar a value."""

HISTOGRAM_ROWS = 100_000
"""Rows of each side in a histogram; one of more looks the same."""

_EDGE_SHARE = 0.001
_HALVES_BELOW = 2.0**52
"""Whole numbers beyond have no float between them."""


def describe(
    real: Transitions,
    synthetic: Transitions,
    similarity: Sequence[float],
    similarity_real: Sequence[float],
    *,
    seed: int = 0,
) -> tuple[Column, ...]:
    """A `Column` for each column of the rows; the similarities were measured before."""
    bounds = Bounds.of(real)
    outside = np.concatenate([bounds.outside(synthetic, field).mean(axis=0) for field in real.modelled()])
    scales = [Standard.of(matrix) for matrix in matrices_of(real, synthetic)]
    drawn = matrices_of(at_most(real, HISTOGRAM_ROWS, seed), at_most(synthetic, HISTOGRAM_ROWS, seed))
    columns = []
    for at, name in enumerate(column_names(real)):
        edges = bin_edges(drawn[0][:, at], drawn[1][:, at])
        centres = [float(scale.centre[at]) for scale in scales]
        stds = [float(scale.std[at]) if scale.varies[at] else 0.0 for scale in scales]
        columns.append(
            Column(
                name=name,
                similarity=float(similarity[at]),
                similarity_real=float(similarity_real[at]),
                real_mean=centres[0],
                real_std=stds[0],
                synthetic_mean=centres[1],
                synthetic_std=stds[1],
                outside=float(outside[at]),
                edges=tuple(edges.tolist()),
                real_shares=shares(drawn[0][:, at], edges),
                synthetic_shares=shares(drawn[1][:, at], edges),
            )
        )
    return tuple(columns)


def bin_edges(real: Array, synthetic: Array) -> Array:
    """One bin a value for a few whole numbers, else equal bins over what nearly all rows of either side hold: a stray
    value must not squeeze the rest into a single bar."""
    sides = [real.astype(np.float64), synthetic.astype(np.float64)]
    low, high = min(side.min() for side in sides), max(side.max() for side in sides)
    whole = all((side == np.round(side)).all() for side in sides)
    if whole and max(-low, high) < _HALVES_BELOW and high - low < MOST_VALUES:
        return np.arange(low - 0.5, high + 1.0)
    inner = [np.quantile(side, [_EDGE_SHARE, 1 - _EDGE_SHARE], method="nearest") for side in sides]
    inner_low, inner_high = min(ends[0] for ends in inner), max(ends[1] for ends in inner)
    if inner_low < inner_high:  # else nearly all rows hold the same value, and only the others need bins
        low, high = inner_low, inner_high
    middle, reach = low / 2 + high / 2, high / 2 - low / 2  # halved first: the sum of huge numbers is none
    if reach <= abs(middle) * 1e-12:
        reach = max(abs(middle), 1.0) / 2
    with np.errstate(over="ignore"):
        edges: Array = np.nan_to_num(middle + reach * np.linspace(-1.0, 1.0, BINS + 1))
    return edges


def shares(values: Array, edges: Array) -> tuple[float, ...]:
    """Share of the values in each bin. What lies beyond counts in the outermost bins, so that nothing is lost."""
    counts, _ = np.histogram(np.clip(values.astype(np.float64), edges[0], edges[-1]), edges)
    return tuple((counts / len(values)).tolist())
