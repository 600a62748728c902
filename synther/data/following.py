"""Discrete outcomes that follow from a few discrete columns alone: drawn from tables of how often each does.

A timer that counts on, a task that stays the same, a walker that slips: what a whole number becomes is often a matter
of itself, the action, and chance. A network has to learn every such step by heart, and one that was fitted for a minute
makes steps that cannot be. Here the shares of all values are counted for each combination of what they follow from,
and the matrix has one number for such an outcome in place of its code: its rank among the values that might have
followed, spread out to a standard normal number. For the network that is noise that depends on nothing, and decoding
draws each value with its share.

Which outcomes have a table is found by tables.py.

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

from synther.data.codes import encode_index
from synther.data.kinds import Array, Binary, Categorical, Codebook, Kind, Levels, OneHot
from synther.errors import FormatError
from synther.schema import checked

Matrix = NDArray[np.float64]
Classes = NDArray[np.int64]

_TAIL = 1e-6
_SPREADING = 7  # of random numbers


@dataclass(frozen=True)
class Following:
    """The shares of an outcome's values for each combination of values that it follows from."""

    outcome: int
    """Its place among those of the layout."""
    parents: tuple[int, ...]
    """The places that it follows from. Parents that are such outcomes themselves come before it."""
    sizes: tuple[int, ...]
    """How many values each parent has."""
    shares: tuple[tuple[float, ...], ...]
    """For each combination, the last parent changing fastest."""

    @cached_property
    def _ends(self) -> Matrix:
        """Where the span of each value ends. (C, K)"""
        ends = np.cumsum(np.array(self.shares), axis=1)
        ends[:, -1] = 1.0
        return ends

    def cells(self, classes: Mapping[int, Classes], count: int) -> Classes:
        """The number of the combination that each of `count` rows has. (N,)"""
        cells = np.zeros(count, np.int64)
        for parent, size in zip(self.parents, self.sizes, strict=True):
            cells = cells * size + np.clip(classes[parent], 0, size - 1)
        return cells

    def spread(self, classes: Mapping[int, Classes], draw: np.random.Generator) -> Matrix:
        """The outcome's values as normal numbers. (N,)"""
        values = classes[self.outcome]
        cells = self.cells(classes, len(values))
        ends = self._ends
        high = ends[cells, values]
        low = np.where(values > 0, ends[cells, np.maximum(values - 1, 0)], 0.0)
        return _normal(low + (high - low) * draw.random(len(values)))

    def drawn(self, classes: Mapping[int, Classes], numbers: Matrix) -> Classes:
        """The way back, for any numbers (N,). Of the real rows, these have mean 0 and std 1."""
        ends = self._ends[self.cells(classes, len(numbers))]
        ranks = np.clip(_rank(numbers), 0.0, 1 - _TAIL / 2)
        found: Classes = (ranks[:, None] >= ends).sum(1)
        return np.asarray(np.minimum(found, ends.shape[1] - 1), np.int64)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, places: int) -> Following:
        if isinstance(entry, dict):  # earlier files say 0 and 1 here, what calibrations correct
            entry = {name: value for name, value in entry.items() if name not in ("shift", "scale")}
        found: Following = checked(entry, cls, "layout.following")
        wide = {len(shares) for shares in found.shares}
        known = all(0 <= place < places for place in (found.outcome, *found.parents))
        whole = len(found.sizes) == len(found.parents) and math.prod(found.sizes) == len(found.shares)
        if not (known and whole and len(wide) == 1 and np.isfinite(np.array(found.shares)).all()):
            raise FormatError("layout.following: expected a share of every value for every combination of parents")
        return found


def stream() -> np.random.Generator:
    """The random numbers that outcomes are spread with: the same for the same rows."""
    return np.random.default_rng(_SPREADING)


def class_count(kind: Kind) -> int:
    """How many values a discrete kind has; 0 where these are not known."""
    return 2 if isinstance(kind, Binary) else kind.class_count


def classes_of(kind: Kind, source: Array) -> Classes:
    """Which of its values each row of `source` has. (N,)"""
    return (source[:, 0] == kind.high).astype(np.int64) if isinstance(kind, Binary) else kind.classes(source)


def class_rows(kind: Kind) -> tuple[tuple[float, ...], ...]:
    """The values that the classes stand for."""
    if isinstance(kind, Binary):
        return (kind.low,), (kind.high,)
    if isinstance(kind, Levels):
        return tuple((value,) for value in kind.values)
    coding = kind.coding if isinstance(kind, (Categorical, OneHot, Codebook)) else "onehot"
    codes = kind.decode(encode_index(np.arange(kind.class_count), kind.class_count, coding))
    return tuple(map(tuple, codes.astype(np.float64).tolist()))


def _normal(ranks: Matrix) -> Matrix:
    """The standard normal number of each rank in (0, 1)."""
    return np.asarray(torch.special.ndtri(torch.from_numpy(np.clip(ranks, _TAIL, 1 - _TAIL))).numpy())


def _rank(numbers: Matrix) -> Matrix:
    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(numbers, np.float64))).numpy())
