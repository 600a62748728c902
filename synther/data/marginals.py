"""How often generated columns have each value: as the real rows do, by an increasing line for each column.

A network that is small, or was fitted for a minute only, rounds off what is sharp: it makes too many values beside a
limit, and too few at a peak. Its values are in the right order all the same: the line that takes their quantiles to the
real ones sets them right, and moves a row hardly at all. Only columns that outcomes follow from have a line. Outcomes
follow from the corrected values: exactly, as far as a regression explains them. The rest of them is as it was, which
is why a column that is nearly right stays as it is.

Rows that begin an episode often lie close together, and the line of all rows would move them elsewhere. So they have
lines of their own, if it is known which rows they are.

A column with a spike inside its range has a second column that marks the rows on the spike (numbers.py). Those rows are
left out of its quantiles.

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
from synther.data.numbers import Real, Spiked, Wrapped
from synther.data.quantiles import Line, Lines
from synther.data.scaling import Scaler
from synther.data.values import Integer
from synther.errors import FormatError
from synther.schema import checked, finite

Quantiles = tuple[tuple[float, ...], ...]
"""Of each column that may have a line, its values at RANKS; none where rows were too few."""

RANKS = torch.special.ndtr(torch.linspace(-2.4, 2.4, 73, dtype=torch.float64)).numpy()
"""Evenly in normal scores. Beyond the outer hundredths, rows are too few to tell how a line bends."""
MOST_ROWS = 1 << 18
"""Evenly chosen, from which quantiles are taken: more change nothing."""
_ROWS_APART = 200  # between neighbouring ranks in the middle, by which a share is known to 7 %
_STRIDES = 1, 2, 4, 8, 12, 24
_FEWEST = 50  # rows, which tell a mean and a std
_CLOSE = 0.02  # between shares up to any value: a column without spikes of which no share is further off has no line


@dataclass(frozen=True)
class Correction:
    """A column of the matrix, and the line that corrects it: straight between knots, and with its mean slope beyond."""

    column: int
    at: tuple[float, ...]
    to: tuple[float, ...]

    @property
    def line(self) -> Line:
        slope = (self.to[-1] - self.to[0]) / (self.at[-1] - self.at[0])
        return Line(np.array(self.at), np.array(self.to), slope, slope)

    @classmethod
    def from_json(cls, entry: Any) -> Correction:
        found: Correction = checked(entry, cls, "a correction")
        at, to = (np.array(finite(each, "a correction")) for each in (found.at, found.to))
        if len(at) < 2 or len(at) != len(to) or (np.diff(at) <= 0).any() or (np.diff(to) < 0).any():
            raise FormatError("a correction: expected as many increasing numbers on both sides, two or more")
        return found


Corrections = tuple[Correction, ...]


def quantiles(layout: Layout, scaler: Scaler, matrix: Tensor) -> Quantiles:
    """Those of real rows, as the network sees them. (N, D)"""
    every = [_values(matrix, column, spikes) for column, spikes in _corrected(layout, scaler)]
    return tuple(
        # NumPy finds many quantiles sooner where the values are in order.
        tuple(np.quantile(np.sort(values), RANKS).tolist()) if _stride(len(values)) else ()
        for values in every
    )


def corrections(layout: Layout, scaler: Scaler, real: Quantiles, matrix: Tensor, *, every: bool = False) -> Corrections:
    """What takes generated rows (N, D) to the quantiles of `real` rows, in columns that are off, or in `every` one."""
    spiked = {place.matrix.start for place in layout.places if isinstance(place.kind, Spiked)}
    found = []
    for (column, spikes), wanted in zip(_corrected(layout, scaler), real, strict=True):
        values = _values(matrix, column, spikes)
        stride = _stride(len(values))
        if not wanted or not stride or not np.isfinite(values).all():
            continue
        values = np.sort(values)
        off = np.abs(np.searchsorted(values, wanted) / len(values) - RANKS).max()
        if off <= _CLOSE and column not in spiked and not every:
            continue
        at, to = np.quantile(values, RANKS)[::stride], np.array(wanted)[::stride]
        apart = np.diff(at, prepend=-np.inf) > np.spacing(np.abs(at).max())
        if apart.sum() > 1:
            found.append(Correction(column, tuple(at[apart].tolist()), tuple(to[apart].tolist())))
    return tuple(found)


class Corrector:
    """Corrections on a device."""

    def __init__(self, every: Corrections, starts: Corrections, device: torch.device) -> None:
        """`starts` are those of rows that begin an episode."""
        self._every, self._starts = _Moving(every, device), _Moving(starts, device)

    def __call__(self, rows: Tensor, begins: Tensor | None) -> Tensor:
        """The corrected rows (N, D). `begins` (N,) marks rows that begin an episode, where that is known."""
        usual = self._every(rows)
        return usual if begins is None else torch.where(begins[:, None], self._starts(rows), usual)


class _Moving:
    """The corrections of some rows, on a device."""

    def __init__(self, found: Corrections, device: torch.device) -> None:
        self._columns = torch.tensor([one.column for one in found], dtype=torch.int64, device=device)
        self._lines = Lines([one.line for one in found], device) if found else None

    def __call__(self, rows: Tensor) -> Tensor:
        if self._lines is None:
            return rows
        moved = self._lines.follow(rows.t()[self._columns].double())
        return rows.index_copy(1, self._columns, moved.t().to(rows.dtype))


def corrected_count(layout: Layout, scaler: Scaler) -> int:
    """How many columns may have a line."""
    return len(_corrected(layout, scaler))


def _corrected(layout: Layout, scaler: Scaler) -> Sequence[tuple[int, range]]:
    """Columns, and those of the spikes inside their ranges."""
    if scaler.residuals is None:  # where a corrected observation would leave its outcome behind
        return ()
    free, found = set(scaler.residuals.free), []
    on_spheres = {("observation", column) for sphere in layout.spheres for column in sphere.columns}
    for place in layout.places:
        column, kind = place.matrix.start, place.kind
        returns = isinstance(kind, Wrapped) or (place.field, place.source.start) in on_spheres
        if column in free and isinstance(kind, Real | Integer) and not returns:  # to its circle or sphere, and is right
            found.append((column, range(column + 1, place.matrix.stop)))
    return found


def _values(matrix: Tensor, column: int, spikes: range) -> NDArray[np.float64]:
    """What a column holds in the rows that are on none of its spikes. (M,)"""
    values = matrix[:, column]
    if spikes:
        values = values[~(matrix[:, spikes.start : spikes.stop] > 0.5).any(1)]
    return np.asarray(values.double().cpu().numpy())


def _stride(rows: int) -> int:
    """Every which rank is used, so that enough of so many rows lie between two; 0 where there are too few rows."""
    middle = RANKS[len(RANKS) // 2 + 1] - RANKS[len(RANKS) // 2]
    enough = (stride for stride in _STRIDES if rows * middle * stride >= _ROWS_APART)
    return next(enough, _STRIDES[-1] if rows >= _FEWEST else 0)
