"""Which kind each column is, decided from the declared spaces and from what the rows hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data import kinds, spaces
from synther.data.codes import Coding
from synther.data.kinds import Kind
from synther.data.moments import RowSample
from synther.data.spaces import Space
from synther.data.transitions import ROW_FIELDS, RowSource, Transitions
from synther.errors import ConfigError, DataError

Array = NDArray[Any]

_CHUNK = 1 << 16
LARGEST_ONEHOT = 4096
"""More values than this are not coded one-hot: the matrix would not fit anywhere."""

SPIKE_SHARE, FEWEST_IN_A_SPIKE, MOST_SPIKES = 0.002, 20, 8
SPIKE_GAP = 0.25
"""Room on each side of a spike, in deviations of its column: many times what a fitted generator scatters."""


@dataclass(frozen=True)
class Profile:
    """What was seen in each of W columns, in the columns' own type, so that large integers stay exact."""

    low: Array
    high: Array
    whole: NDArray[np.bool_]
    two_valued: NDArray[np.bool_]

    @classmethod
    def of(cls, values: Array) -> Profile:
        low, high = values.min(0), values.max(0)
        whole = np.ones(values.shape[1], bool)
        if values.dtype.kind == "f":
            # beyond 2 / eps every float is whole, which says nothing about the column
            whole = (values == np.rint(values)).all(0) & (np.maximum(-low, high) <= 2 / np.finfo(values.dtype).eps)
        return cls(low, high, whole, ((values == low) | (values == high)).all(0))

    def merge(self, other: Profile) -> Profile:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        two_valued = self.two_valued & other.two_valued
        for end in (self.low, self.high, other.low, other.high):
            two_valued = two_valued & ((end == low) | (end == high))
        return Profile(low, high, self.whole & other.whole, two_valued)

    @property
    def constant(self) -> NDArray[np.bool_]:
        return np.asarray(self.low == self.high)

    def span(self, column: int) -> tuple[float, float]:
        return float(self.low[column]), float(self.high[column])

    def constant_kind(self, column: int) -> Kind:
        value = self.low[column].item()
        return kinds.Constant(int(value) if isinstance(value, bool) else value)


def profile(rows: RowSource) -> tuple[Transitions, dict[str, Profile]]:
    """The first chunk of `rows`, for its types and spaces, and what all of them hold.

    Observation and next observation share one profile: they are the same quantities at two moments.
    """
    first: Transitions | None = None
    seen: dict[str, Profile] = {}
    for chunk in rows.chunks(_CHUNK):
        first = first or chunk
        for field in ROW_FIELDS:
            name = "observation" if field == "next_observation" else field
            here = Profile.of(getattr(chunk, field).reshape(len(chunk), -1))
            seen[name] = seen[name].merge(here) if name in seen else here
    if first is None:
        raise DataError("there are no rows: expected at least one transition")
    return first, seen


def sample(rows: RowSource, limit: int = 1 << 17) -> dict[str, Array]:
    """Some rows of observation (with next observation), action and reward, as columns (n, W) of float64."""
    drawn = {field: RowSample(0, limit) for field in ("observation", "action", "reward")}
    for chunk in rows.chunks(_CHUNK):
        for field, kept in drawn.items():
            for name in (field, "next_observation") if field == "observation" else (field,):
                kept.add(getattr(chunk, name).reshape(len(chunk), -1).astype(np.float64))
    return {field: kept.rows for field, kept in drawn.items()}


def spiked(found: tuple[Kind, ...], values: Array, seen: Profile) -> tuple[Kind, ...]:
    """`found` with the columns of real numbers that have spikes in `values`, a sample of them, as Spiked.

    A spike is a value of 1 in 500 rows. A column of many of them is quantised, not spiked, and stays as it is.
    """
    better: list[Kind] = []
    column = 0
    for kind in found:
        if isinstance(kind, (kinds.Continuous, kinds.Bounded)):
            value, count = np.unique(values[:, column], return_counts=True)
            spikes = value[count >= max(SPIKE_SHARE * len(values), FEWEST_IN_A_SPIKE)]
            if 0 < len(spikes) <= MOST_SPIKES:
                low, high = (kind.low, kind.high) if isinstance(kind, kinds.Bounded) else seen.span(column)
                gap = SPIKE_GAP * _deviation(values[:, column])
                kind = kinds.Spiked(low, high, tuple(spikes.tolist()), gap)
        better.append(kind)
        column += kind.source_width
    return tuple(better)


def _deviation(values: Array) -> float:
    """In units of the power of two above the largest value, so that no square of it overflows or vanishes."""
    exponent = int(np.frexp(np.abs(values).max())[1])
    return math.ldexp(float(np.ldexp(values, -exponent).std()), exponent)


def observed_kind(seen: Profile, column: int) -> Kind:
    """The kind of a column about which only the data is known."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    if not seen.whole[column]:
        return kinds.Continuous()
    return (kinds.Binary if seen.two_valued[column] else kinds.Integer)(*seen.span(column))


def observation_kinds(seen: Profile, space: Space | None, coding: Coding) -> tuple[Kind, ...]:
    """Boxes are judged by the data: many environments declare bounds that their observations leave."""
    return _by_parts(seen, space or _unknown(seen), coding, lambda part, offset, column: observed_kind(seen, column))


def action_kinds(seen: Profile, space: Space | None, coding: Coding) -> tuple[Kind, ...]:
    """Boxes are taken at their word, since an action outside them cannot be played."""
    if space is not None:
        return _by_parts(seen, space, coding, lambda part, offset, column: _boxed(seen, part, offset, column))
    if seen.low.dtype.kind == "f":
        box = spaces.Box(tuple(map(float, seen.low)), tuple(map(float, seen.high)))
        return action_kinds(seen, (box,), coding)
    return tuple(_whole_action(seen, column, coding) for column in range(len(seen.low)))


def _unknown(seen: Profile) -> Space:
    return (spaces.Box.uniform(-math.inf, math.inf, len(seen.low)),)


def _boxed(seen: Profile, part: spaces.Box, offset: int, column: int) -> Kind:
    if seen.constant[column]:
        return seen.constant_kind(column)
    if seen.whole[column] and seen.low.dtype.kind == "f":
        return observed_kind(seen, column)  # a discrete action, or a bang-bang controller, recorded as floats
    low, high = float(part.low[offset]), float(part.high[offset])
    if seen.low.dtype.kind == "f":
        return kinds.Bounded(low, high)
    return kinds.Integer(float(np.ceil(low)), float(np.floor(high)))


def _whole_action(seen: Profile, column: int, coding: Coding) -> Kind:
    """An integer action of unknown space: categories, unless there are so many that they must have an order."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    low, high = int(seen.low[column]), int(seen.high[column])
    if high - low >= LARGEST_ONEHOT or high > np.iinfo(np.int64).max:
        return kinds.Integer(*seen.span(column))
    return kinds.Categorical(high - low + 1, low, coding)


def _by_parts(
    seen: Profile, space: Space, coding: Coding, box: Callable[[spaces.Box, int, int], Kind]
) -> tuple[Kind, ...]:
    found: list[Kind] = []
    start = 0
    for part in space:
        columns = range(start, start + part.width)
        if isinstance(part, spaces.Box):
            found += [box(part, offset, column) for offset, column in enumerate(columns)]
        elif seen.constant[columns].all():
            found += [seen.constant_kind(column) for column in columns]
        elif isinstance(part, spaces.Binary):
            found += [
                seen.constant_kind(column) if seen.constant[column] else kinds.Binary(0.0, 1.0) for column in columns
            ]
        elif isinstance(part, spaces.OneHot):
            ones = tuple(offset for offset, column in enumerate(columns) if seen.high[column] > 0)
            found.append(kinds.OneHot(part.size, coding, ones if 1 < len(ones) < part.size else ()))
        else:
            found.append(_coded(part, coding))
        start += part.width
    return tuple(found)


def _coded(part: spaces.Discrete, coding: Coding) -> Kind:
    if coding == "onehot" and part.size > LARGEST_ONEHOT:
        raise ConfigError(f"a discrete space of {part.size:,} values is too large to code one-hot: use coding 'bits'")
    return kinds.Categorical(part.size, part.start, coding)
