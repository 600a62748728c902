"""Discrete outcomes that follow from a few discrete columns alone: drawn from tables of how often each does.

A timer that counts on, a task that stays the same, a walker that slips: what a whole number becomes is often a matter
of itself, the action, and chance. A network has to learn every such step by heart, and one that was fitted for a minute
makes steps that cannot be. Here the shares of all values are counted for each combination of what they follow from,
and the matrix has one number for such an outcome in place of its code: its rank among the values that might have
followed, spread out to a standard normal number. For the network that is noise that depends on nothing, and decoding
draws each value with its share.

An outcome that other columns have a part in stays as it is: one that real numbers explain (a leg that touches the
ground), or that explains real numbers, whose share in it the tables would hide.

NOTE[paper]: the reference generates everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.residuals import bends, least_squares
from synther.errors import FormatError
from synther.schema import checked

Matrix = NDArray[np.float64]
Classes = NDArray[np.int64]

MOST_VALUES = 64
"""Of a column, or group of columns, that is counted."""
_MOST_PARENTS = 3
_MOST_SHARES = 1 << 15  # of a table,
_ROWS_PER_CELL = 5  # and rows for each combination of what an outcome follows from
_FEWEST_ROWS = 1_000
_EXPLAINED = 0.02  # share of variance that real numbers may explain of what a table leaves open,
_EXPLAINS = 0.005  # and that this may explain of real numbers
_ERRORS, _SHIFT = 6.0, 0.25  # standard errors, and stds, by which real numbers may be others beside a value
_CERTAIN = 0.05  # share of an outcome's variance that is left to chance
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
    shift: float = 0.0
    scale: float = 1.0
    """Mean and std of the numbers that a generator makes. Those of the real rows are 0 and 1."""

    @cached_property
    def _ends(self) -> Matrix:
        """Where the span of each value ends. (C, K)"""
        ends = np.cumsum(np.array(self.shares), axis=1)
        ends[:, -1] = 1.0
        return ends

    def _cells(self, classes: Mapping[int, Classes], count: int) -> Classes:
        cells = np.zeros(count, np.int64)
        for parent, size in zip(self.parents, self.sizes, strict=True):
            cells = cells * size + np.clip(classes[parent], 0, size - 1)
        return cells

    def spread(self, classes: Mapping[int, Classes], draw: np.random.Generator) -> Matrix:
        """The outcome's values as normal numbers. (N,)"""
        values = classes[self.outcome]
        cells = self._cells(classes, len(values))
        ends = self._ends
        high = ends[cells, values]
        low = np.where(values > 0, ends[cells, np.maximum(values - 1, 0)], 0.0)
        return _normal(low + (high - low) * draw.random(len(values)))

    def drawn(self, classes: Mapping[int, Classes], numbers: Matrix) -> Classes:
        """The way back, for any numbers (N,)."""
        ends = self._ends[self._cells(classes, len(numbers))]
        ranks = np.clip(_rank((numbers - self.shift) / self.scale), 0.0, 1 - _TAIL / 2)
        found: Classes = (ranks[:, None] >= ends).sum(1)
        return np.asarray(np.minimum(found, ends.shape[1] - 1), np.int64)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, places: int) -> Following:
        found: Following = checked(entry, cls, "layout.following")
        wide = {len(shares) for shares in found.shares}
        known = all(0 <= place < places for place in (found.outcome, *found.parents))
        whole = len(found.sizes) == len(found.parents) and math.prod(found.sizes) == len(found.shares)
        if not (known and whole and len(wide) == 1 and np.isfinite(np.array(found.shares)).all() and found.scale > 0):
            raise FormatError("layout.following: expected a share of every value for every combination of parents")
        return found


def stream() -> np.random.Generator:
    """The random numbers that outcomes are spread with: the same for the same rows."""
    return np.random.default_rng(_SPREADING)


def find(
    discrete: Mapping[int, Classes],
    counts: Mapping[int, int],
    outcomes: Sequence[int],
    given: Matrix,
    after: Matrix,
    certain: Sequence[int] = (),
) -> list[Following]:
    """Tables for those of the `outcomes` that follow from discrete columns alone.

    `discrete` has the values of each discrete place in some rows, `counts` how many values it has. `given` (N, G) are
    the real numbers of observation and action, `after` (N, A) those of reward and next observation. Outcomes that must
    be `certain` have no table that leaves much to chance.
    """
    if len(after) < _FEWEST_ROWS:
        return []
    given, after = _standard(given), _standard(after)
    earlier = [place for place in discrete if place not in outcomes]
    found: list[Following] = []
    open_ended: list[Matrix] = []
    for outcome in outcomes:
        table = _counted(outcome, earlier, discrete, counts)
        left = _left(table, discrete)
        chance = left.var(0).sum() / np.eye(counts[outcome])[discrete[outcome]].var(0).sum()
        is_chance = outcome in certain and chance > _CERTAIN
        if is_chance or _explained(given, left) > _EXPLAINED or _go_with(given, left):
            open_ended.append(np.eye(counts[outcome])[discrete[outcome]])
        else:
            found.append(table)
        earlier.append(outcome)
    others = _standard(np.concatenate([after, *open_ended], axis=1))
    others = _standard(others - _told(given, others))
    return [
        table
        for table in found
        if _explains(table, discrete, others) <= _EXPLAINS and not _go_with(others, _left(table, discrete))
    ]


def _counted(
    outcome: int, earlier: Sequence[int], discrete: Mapping[int, Classes], counts: Mapping[int, int]
) -> Following:
    """The table with the parents that are worth their number: by the Bayesian information criterion."""
    values, size = discrete[outcome], counts[outcome]
    cells, parents = np.zeros(len(values), np.int64), list[int]()
    best = _criterion(cells, values, size)
    while len(parents) < _MOST_PARENTS:
        most = min(len(values) // _ROWS_PER_CELL, _MOST_SHARES // size)
        tried = []
        for parent in earlier:
            total = math.prod(counts[one] for one in (*parents, parent))
            if parent not in parents and total <= most:
                tried.append((_criterion(cells * counts[parent] + discrete[parent], values, size), parent))
        if not tried or min(tried)[0] >= best:
            break
        best, chosen = min(tried)
        parents.append(chosen)
        cells = cells * counts[chosen] + discrete[chosen]
    sizes = tuple(counts[parent] for parent in parents)
    joint = np.bincount(cells * size + values, minlength=math.prod(sizes) * size).reshape(-1, size).astype(np.float64)
    overall = np.bincount(values, minlength=size) / len(values)
    seen = joint.sum(1, keepdims=True)
    shares = np.where(seen > 0, joint / np.maximum(seen, 1), overall)  # a combination never seen: as in all rows
    return Following(outcome, tuple(parents), sizes, tuple(map(tuple, shares.tolist())))


def _criterion(cells: Classes, values: Classes, size: int) -> float:
    """Nats that the values cost where the cells are known, and half a logarithm of the rows for each share."""
    _, joint = np.unique(cells * size + values, return_counts=True)
    _, alone = np.unique(cells, return_counts=True)
    nats = float((alone * np.log(alone)).sum() - (joint * np.log(joint)).sum())
    return nats + 0.5 * math.log(len(values)) * (len(joint) - len(alone))


def _left(table: Following, discrete: Mapping[int, Classes]) -> Matrix:
    """Which value each row has, less the share that the table gives it. (N, K)"""
    values = discrete[table.outcome]
    shares = np.array(table.shares)[table._cells(discrete, len(values))]
    return np.asarray(np.eye(shares.shape[1])[values] - shares)


def _explained(given: Matrix, left: Matrix) -> float:
    """The largest share of a column's variance that a line, or a bent line, in real numbers explains."""
    left = left[:, left.std(0) > 1e-3]
    if not given.shape[1] or not left.shape[1]:
        return 0.0
    half = np.arange(len(given)) % 2 == 0
    told = left[half].mean(0) + (given[~half] - given[half].mean(0)) @ least_squares(given[half], left[half])
    gain = 1 - ((left[~half] - told) ** 2).mean(0) / np.maximum(left[~half].var(0), 1e-12)
    return 1.0 if bends(given, left) else float(gain.max())


def _go_with(columns: Matrix, left: Matrix) -> bool:
    """Whether columns of std 1, or how far they are from their mean, are others where a value comes unexpectedly.

    A value in a thousand rows explains little of anybody's variance, even if it comes beyond some line alone.
    """
    left = left[:, left.std(0) > 1e-6]
    columns = np.concatenate([columns, _standard(np.abs(columns))], axis=1)
    size = (left**2).sum(0)[:, None]
    together = left.T @ columns
    return bool(((np.abs(together) > _ERRORS * np.sqrt(size)) & (np.abs(together) > _SHIFT * size)).any())


def _explains(table: Following, discrete: Mapping[int, Classes], others: Matrix) -> float:
    """The largest share of the variance of `others`, within a cell of the table, that the outcome explains."""
    values, size = discrete[table.outcome], len(table.shares[0])
    cells = table._cells(discrete, len(values))
    half = np.arange(len(values)) % 2 == 0
    largest = 0.0
    for column in others.T:
        rest = column - _group_means(cells, column, half)
        told = _group_means(cells * size + values, rest, half)
        variance = rest[~half].var()
        if variance > 1e-6:
            largest = max(largest, float(1 - ((rest - told)[~half] ** 2).mean() / variance))
    return largest


def _group_means(groups: Classes, values: Matrix, fitted: NDArray[np.bool_]) -> Matrix:
    """For each row the mean of its group, taken from the rows `fitted`; 0 for a group of fewer than five."""
    count = int(groups.max()) + 1
    seen = np.bincount(groups[fitted], minlength=count)
    totals = np.bincount(groups[fitted], weights=values[fitted], minlength=count)
    means = np.where(seen >= _ROWS_PER_CELL, totals / np.maximum(seen, 1), 0.0)
    return np.asarray(means[groups])


def _told(given: Matrix, others: Matrix) -> Matrix:
    """What a line in real numbers tells about others."""
    return np.asarray(given @ least_squares(given, others)) if given.shape[1] else np.zeros_like(others)


def _standard(columns: Matrix) -> Matrix:
    """Those that vary, with mean 0 and std 1."""
    std = columns.std(0)
    varies = std > 1e-12 * np.maximum(np.abs(columns).max(0, initial=0.0), 1e-300)
    return np.asarray((columns[:, varies] - columns[:, varies].mean(0)) / std[varies])


def _normal(ranks: Matrix) -> Matrix:
    """The standard normal number of each rank in (0, 1)."""
    import torch

    return np.asarray(torch.special.ndtri(torch.from_numpy(np.clip(ranks, _TAIL, 1 - _TAIL))).numpy())


def _rank(numbers: Matrix) -> Matrix:
    import torch

    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(numbers, np.float64))).numpy())
