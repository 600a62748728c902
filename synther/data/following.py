"""`Following`: a table from which a discrete outcome is drawn, if it depends only on a few discrete columns.

Examples are a timer that counts up, a task that stays the same, or a walker that slips. The next value depends on the
last one, the action, and chance. A network has to memorise every such step, and a network that was fitted for a minute
generates impossible ones. So the shares of all values are counted for each combination of parent values. In the matrix,
the outcome is one standard normal number in place of its code: `spread` draws a random rank inside the value's part of
the cumulative shares and converts it to a normal number. For the network this is noise that depends on nothing.
`drawn` converts generated numbers back to values, so each value occurs with its share.

tables.py finds the outcomes that have a table.

NOTE[paper]: the reference generates everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.codes import encode_index
from synther.data.kinds import Array, Binary, Categorical, Codebook, Kind, Levels, OneHot
from synther.errors import FormatError
from synther.schema import checked

Matrix = NDArray[np.float64]
Classes = NDArray[np.int64]

_TAIL = 1e-6  # ranks keep this distance from 0 and 1, so that normal numbers stay finite
_SPREADING = 7  # seed of `stream`


@dataclass(frozen=True)
class Following:
    """The share of each value of an outcome, for each combination of parent values."""

    outcome: int
    """Number of the outcome's place in the layout."""
    parents: tuple[int, ...]
    """Numbers of the places that the outcome depends on. A parent that has a table itself comes earlier in the layout's
    list of tables."""
    sizes: tuple[int, ...]
    """Number of values of each parent."""
    shares: tuple[tuple[float, ...], ...]
    """Shares of the K values for each of the C combinations (C, K). The value of the last parent changes fastest."""

    @cached_property
    def _ends(self) -> Matrix:
        """The cumulative shares of the values. (C, K)"""
        ends = np.cumsum(np.array(self.shares), axis=1)
        ends[:, -1] = 1.0
        return ends

    def cells(self, classes: Mapping[int, Classes], count: int) -> Classes:
        """Return the number of the combination of parent values in each of `count` rows (N,). `classes` holds the
        values (N,) of each place."""
        cells = np.zeros(count, np.int64)
        for parent, size in zip(self.parents, self.sizes, strict=True):
            cells = cells * size + np.clip(classes[parent], 0, size - 1)
        return cells

    def spread(self, classes: Mapping[int, Classes], draw: np.random.Generator) -> Matrix:
        """Convert the outcome's values to normal numbers (N,). `classes` holds the values (N,) of each place."""
        values = classes[self.outcome]
        cells = self.cells(classes, len(values))
        ends = self._ends
        high = ends[cells, values]
        low = np.where(values > 0, ends[cells, np.maximum(values - 1, 0)], 0.0)
        return _normal(low + (high - low) * draw.random(len(values)))

    def drawn(self, classes: Mapping[int, Classes], numbers: Matrix) -> Classes:
        """Convert numbers (N,) back to the outcome's values (N,). Any number is valid; those of real rows have mean 0
        and std 1."""
        ends = self._ends[self.cells(classes, len(numbers))]
        ranks = np.clip(_rank(numbers), 0.0, 1 - _TAIL / 2)
        values: Classes = (ranks[:, None] >= ends).sum(1)
        return np.asarray(np.minimum(values, ends.shape[1] - 1), np.int64)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, places: int) -> Following:
        """Read an entry of a file. `places` is the number of places in the layout."""
        if isinstance(entry, dict):  # older files have 0 and 1 here; calibrations do this correction now
            entry = {name: value for name, value in entry.items() if name not in ("shift", "scale")}
        found: Following = checked(entry, cls, "layout.following")
        wide = {len(shares) for shares in found.shares}
        known = all(0 <= place < places for place in (found.outcome, *found.parents))
        whole = len(found.sizes) == len(found.parents) and math.prod(found.sizes) == len(found.shares)
        if not (known and whole and len(wide) == 1 and np.isfinite(np.array(found.shares)).all()):
            raise FormatError("layout.following: expected a share of every value for every combination of parents")
        return found


def stream() -> np.random.Generator:
    """Return the random generator for `Following.spread`. It has a fixed seed, so the same rows give the same
    matrix."""
    return np.random.default_rng(_SPREADING)


def class_count(kind: Kind) -> int:
    """Return the number of values of a discrete kind, or 0 if it is unknown."""
    return 2 if isinstance(kind, Binary) else kind.class_count


def classes_of(kind: Kind, source: Array) -> Classes:
    """Return which of the values of a discrete kind each row of `source` has, counted from 0. (N,)"""
    return (source[:, 0] == kind.high).astype(np.int64) if isinstance(kind, Binary) else kind.classes(source)


def class_rows(kind: Kind) -> tuple[tuple[float, ...], ...]:
    """Return the values of a discrete kind, one tuple with one number for each of its columns."""
    if isinstance(kind, Binary):
        return (kind.low,), (kind.high,)
    if isinstance(kind, Levels):
        return tuple((value,) for value in kind.values)
    coding = kind.coding if isinstance(kind, (Categorical, OneHot, Codebook)) else "onehot"
    codes = kind.decode(encode_index(np.arange(kind.class_count), kind.class_count, coding))
    return tuple(map(tuple, codes.astype(np.float64).tolist()))


def _normal(ranks: Matrix) -> Matrix:
    """Return the standard normal quantile of each rank in (0, 1)."""
    return np.asarray(torch.special.ndtri(torch.from_numpy(np.clip(ranks, _TAIL, 1 - _TAIL))).numpy())


def _rank(numbers: Matrix) -> Matrix:
    """Return the cumulative standard normal probability of each number."""
    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(numbers, np.float64))).numpy())
