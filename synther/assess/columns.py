"""Describe each column of real and synthetic rows: mean, std, values out of bounds, and histograms."""

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
"""Columns of whole numbers in a range of at most this many values are drawn with one bar per value."""

HISTOGRAM_ROWS = 100_000
"""Largest number of rows of each side in a histogram. Histograms of more rows look the same."""

_EDGE_SHARE = 0.001
"""Share of the values at each end that the range of the bins does not need to cover."""
_HALVES_BELOW = 2.0**52
"""Float64 cannot represent the middle between two whole numbers beyond this, so that bars cannot be centred."""


def describe(
    real: Transitions, synthetic: Transitions, similarity: Sequence[float], similarity_real: Sequence[float]
) -> tuple[Column, ...]:
    """Return a `Column` for each column of the rows. `similarity` and `similarity_real` are already computed."""
    bounds = Bounds.of(real)
    outside = np.concatenate([bounds.outside(synthetic, field).mean(axis=0) for field in real.modelled()])
    scales = [Standard.of(matrix) for matrix in matrices_of(real, synthetic)]
    drawn = matrices_of(at_most(real, HISTOGRAM_ROWS), at_most(synthetic, HISTOGRAM_ROWS))
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
    """Return the edges of the bins.

    A column with a few whole numbers has one bin per value. Other columns have bins of equal width that cover nearly
    all rows of both sides, because a single outlier would squeeze all others into one bar.
    """
    sides = [real.astype(np.float64), synthetic.astype(np.float64)]
    low, high = min(side.min() for side in sides), max(side.max() for side in sides)
    whole = all((side == np.round(side)).all() for side in sides)
    if whole and max(-low, high) < _HALVES_BELOW and high - low < MOST_VALUES:
        return np.arange(low - 0.5, high + 1.0)
    inner = [np.quantile(side, [_EDGE_SHARE, 1 - _EDGE_SHARE], method="nearest") for side in sides]
    inner_low, inner_high = min(ends[0] for ends in inner), max(ends[1] for ends in inner)
    if inner_low < inner_high:  # else nearly all rows have the same value: keep the full range
        low, high = inner_low, inner_high
    middle, reach = low / 2 + high / 2, high / 2 - low / 2  # no overflow: halved first
    if reach <= abs(middle) * 1e-12:
        reach = max(abs(middle), 1.0) / 2
    with np.errstate(over="ignore"):
        edges: Array = np.nan_to_num(middle + reach * np.linspace(-1.0, 1.0, BINS + 1))
    return edges


def shares(values: Array, edges: Array) -> tuple[float, ...]:
    """Return the share of the values in each bin. Values outside the edges are counted in the first and last bin."""
    counts, _ = np.histogram(np.clip(values.astype(np.float64), edges[0], edges[-1]), edges)
    return tuple((counts / len(values)).tolist())
