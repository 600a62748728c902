"""Corrects the distribution of single generated columns (quantile mapping).

A network that is small, or was fitted only for a minute, blurs sharp distributions. For example, it generates too many
values beyond a limit and too few at a peak. But the order of its values is right. So an increasing, piecewise linear
map (a line) from the generated quantiles to the real ones corrects the values, and hardly moves single rows. Only
columns that outcomes are computed from have a line. The part of an outcome that a regression explains is computed from
the corrected values. The residual stays as it was generated, and no longer fits exactly. So columns that are nearly
right are not corrected.

First rows of episodes are often close to each other, and the line of all rows would move them away. So they have lines
of their own, if the network knows which rows they are.

A column with a spike inside its range has a second column that marks the rows on the spike (numbers.py). Those rows are
left out of its quantiles, and are not moved. If a network blurs the marks, the rows with the largest marks count as
such, as many as in the real rows. Columns that share a spike also share its mark: the mean of their marks.

NOTE[paper]: the paper leaves values as the sampler makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.layout import Layout
from synther.data.numbers import Real, Spiked
from synther.data.quantiles import Line, Lines, row_index
from synther.data.scaling import Scaler
from synther.data.values import Integer
from synther.errors import FormatError
from synther.schema import checked, finite

Quantiles = tuple[tuple[float, ...], ...]
"""For each column that may have a line, its quantiles at the levels RANKS. Empty for a column with too few rows."""

Marks = tuple[tuple[int, ...], ...]
"""For each spike inside the range of a column, the columns of the matrix whose mean is its mark."""

RANKS = torch.special.ndtr(torch.linspace(-2.4, 2.4, 73, dtype=torch.float64)).numpy()
"""Levels of the quantiles, equally spaced in normal scores. Closer than 1 % to 0 or 1, there are too few rows to
estimate how a line bends."""
MOST_ROWS = 1 << 18
"""Maximum number of rows that quantiles are computed from, evenly chosen. More rows change nothing."""
_ROWS_APART = 200  # rows needed between neighbouring ranks in the middle; their share is then known to 7 %
_STRIDES = 1, 2, 4, 8, 12, 24  # with few rows, only every n-th rank is used
_FEWEST = 10  # rows needed for a line, enough for a rough mean and std
_CLOSE_ENOUGH = 0.02  # a column without spikes is corrected only if its cumulative distribution is off by more
_MARKED = 0.5  # mark above which a real row is on a spike
_LEAST_MARKED, _MOST_MARKED = 0.25, 0.95  # limits of the mark above which a generated row is on a spike


@dataclass(frozen=True)
class Correction:
    """A column of the matrix, and the line that corrects it: linear between the knots (`at`, `to`), with its mean slope
    beyond them."""

    column: int
    at: tuple[float, ...]
    """Generated quantiles."""
    to: tuple[float, ...]
    """Real quantiles."""
    marks: Marks = ()
    """The columns of the marks of its spikes."""
    cut: float = _MARKED
    """Rows with a larger mark are not moved."""

    @property
    def line(self) -> Line:
        """The line as a `Line` that can be evaluated."""
        slope = (self.to[-1] - self.to[0]) / (self.at[-1] - self.at[0])
        return Line(np.array(self.at), np.array(self.to), slope, slope)

    @classmethod
    def from_json(cls, entry: Any) -> Correction:
        found: Correction = checked(entry, cls, "a correction")
        at, to = (np.array(finite(each, "a correction")) for each in (found.at, found.to))
        if len(at) < 2 or len(at) != len(to) or (np.diff(at) <= 0).any() or (np.diff(to) < 0).any():
            raise FormatError("a correction: expected increasing numbers `at` and `to`, equally many and at least two")
        return found


Corrections = tuple[Correction, ...]


def quantiles(layout: Layout, scaler: Scaler, matrix: Tensor) -> Quantiles:
    """Return the quantiles of the columns that may have a line, given scaled real rows (N, D)."""
    every = [_values(matrix, column, marks, _MARKED) for column, marks in _corrected(layout, scaler)]
    return tuple(
        # NumPy computes many quantiles faster if the values are sorted.
        tuple(np.quantile(np.sort(values), RANKS).tolist()) if _stride(len(values)) else ()
        for values in every
    )


def corrections(
    layout: Layout, scaler: Scaler, real: Quantiles, matrix: Tensor, rates: Sequence[float] | None = None
) -> Corrections:
    """Return corrections that give generated rows (N, D) the `real` quantiles.

    Columns that are nearly right, or nearly constant, are left out if the real `rates` of the layout's flags are given.
    Without them, all columns that may have a line are corrected.
    """
    spiked = {place.matrix.start for place in layout.places if isinstance(place.kind, Spiked)}
    on_spikes = {} if rates is None else _shares_on_spikes(layout, rates)
    found = []
    for (column, marks), wanted in zip(_corrected(layout, scaler), real, strict=True):
        cut = _cut(matrix, marks, on_spikes[column]) if marks and on_spikes else _MARKED
        values = _values(matrix, column, marks, cut)
        stride = _stride(len(values))
        if not wanted or not stride or not np.isfinite(values).all():
            continue
        values = np.sort(values)
        if rates is not None:
            off = np.abs(np.searchsorted(values, wanted) / len(values) - RANKS).max()
            is_right = off <= _CLOSE_ENOUGH and column not in spiked
            if is_right or wanted[0] == wanted[-1]:  # a line to one value would remove values beyond the outer ranks
                continue
        at, to = np.quantile(values, RANKS)[::stride], np.array(wanted)[::stride]
        apart = np.diff(at, prepend=-np.inf) > np.spacing(np.abs(at).max())
        if apart.sum() > 1:
            found.append(Correction(column, tuple(at[apart].tolist()), tuple(to[apart].tolist()), marks, cut))
    return tuple(found)


class Corrector:
    """Applies corrections to generated rows on a device."""

    def __init__(self, every: Corrections, starts: Corrections, device: torch.device) -> None:
        """`every` are the corrections of ordinary rows, `starts` those of the first rows of episodes."""
        self._every, self._starts = _QuantileMap(every, device), _QuantileMap(starts, device)

    def __call__(self, rows: Tensor, begins: Tensor | None) -> Tensor:
        """Return the corrected rows (N, D). `begins` (N,) marks the first rows of episodes, or is None if unknown."""
        usual = self._every(rows)
        return usual if begins is None else torch.where(begins[:, None], self._starts(rows), usual)


class _QuantileMap:
    """Applies one set of corrections to all rows, on a device."""

    def __init__(self, found: Corrections, device: torch.device) -> None:
        self._columns = torch.tensor([one.column for one in found], dtype=torch.int64, device=device)
        self._lines = Lines([one.line for one in found], device) if found else None
        self._marks = [
            (place, [row_index(mark, device) for mark in one.marks], one.cut)
            for place, one in enumerate(found)
            if one.marks
        ]

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the corrected rows (N, D)."""
        if self._lines is None:
            return rows
        before = rows.t()[self._columns].double()
        moved = self._lines.follow(before)
        for place, marks, cut in self._marks:
            moved[place] = torch.where(_largest(rows, marks) > cut, before[place], moved[place])
        return rows.index_copy(1, self._columns, moved.t().to(rows.dtype))


def corrected_count(layout: Layout, scaler: Scaler) -> int:
    """Return the number of columns that may have a line."""
    return len(_corrected(layout, scaler))


def _corrected(layout: Layout, scaler: Scaler) -> Sequence[tuple[int, Marks]]:
    """Return the matrix columns that may have a line, each with the marks of the spikes inside its range."""
    if scaler.residuals is None:  # without a regression, outcomes would not follow the corrected observations
        return ()
    free, shared, found = set(scaler.residuals.free), _shared_marks(layout), []
    on_spheres = {("observation", column) for sphere in layout.spheres for column in sphere.columns}
    for place in layout.places:
        column, kind = place.matrix.start, place.kind
        # Values on a circle or sphere are projected back onto it when rows are decoded, so they need no line.
        is_round = bool(kind.circle) or (place.field, place.source.start) in on_spheres
        if column in free and isinstance(kind, Real | Integer) and not is_round:
            found.append((column, tuple(shared.get(mark, (mark,)) for mark in range(column + 1, place.matrix.stop))))
    return found


def _shared_marks(layout: Layout) -> dict[int, tuple[int, ...]]:
    """Return the columns of the marks of each shared spike, for each of these columns."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for place in layout.places:
        kind = place.kind
        if isinstance(kind, Spiked) and kind.shared in kind.inner:
            mark = place.matrix.start + 1 + kind.inner.index(kind.shared)
            groups.setdefault((place.field, kind.tied), []).append(mark)
    return {mark: tuple(marks) for marks in groups.values() for mark in marks}


def _values(matrix: Tensor, column: int, marks: Marks, cut: float) -> NDArray[np.float64]:
    """Return the values of a column in the M rows that have no mark of its spikes above `cut`. (M,)"""
    values = matrix[:, column]
    if marks:
        values = values[_largest(matrix, marks) <= cut]
    return np.asarray(values.double().cpu().numpy())


def _largest(matrix: Tensor, marks: Sequence[Any]) -> Tensor:
    """Return the largest of the `marks` in each row of the matrix (N, D). (N,)"""
    return torch.stack([matrix[:, columns].mean(1) for columns in marks]).amax(0)


def _shares_on_spikes(layout: Layout, rates: Sequence[float]) -> dict[int, float]:
    """Return the share of the real rows that are on a spike inside the range, for each column with such spikes. `rates`
    are the rates of the layout's flags."""
    shares, remaining = dict[int, float](), iter(rates)
    for place in layout.places:
        own = [next(remaining) for _ in place.kind.thresholds]
        if isinstance(place.kind, Spiked) and place.kind.inner:
            inner = place.kind.inner
            shares[place.matrix.start] = sum(
                rate for spike, rate in zip(place.kind.spikes, own, strict=True) if spike in inner
            )
    return shares


def _cut(matrix: Tensor, marks: Marks, share: float) -> float:
    """Return the mark that a `share` of the generated rows (N, D) exceeds."""
    largest = _largest(matrix, marks).double().cpu().numpy()
    return float(np.clip(np.quantile(largest, 1 - share), _LEAST_MARKED, _MOST_MARKED))


def _stride(rows: int) -> int:
    """Return n if every n-th rank is used, so that enough of the rows lie between two ranks. Return 0 if there are too
    few rows for a line."""
    middle = RANKS[len(RANKS) // 2 + 1] - RANKS[len(RANKS) // 2]
    enough = (stride for stride in _STRIDES if rows * middle * stride >= _ROWS_APART)
    return next(enough, _STRIDES[-1] if rows >= _FEWEST else 0)
