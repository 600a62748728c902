"""Which kind each column is, decided from the declared spaces and from what the rows hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from synther.data import kinds, spaces
from synther.data.codes import Coding
from synther.data.kind import first_columns
from synther.data.kinds import Kind
from synther.data.moments import RowSample
from synther.data.spaces import Space
from synther.data.transitions import EXTRA, PAIR, RowSource, Transitions
from synther.data.values import grain_of
from synther.errors import ConfigError, DataError

Array = NDArray[Any]

CHUNK = 1 << 16
MOST_STEPS, MOST_NUMBERS = 1 << 15, 1 << 24
"""Rows whose steps are looked at, and numbers in them."""
LARGEST_ONEHOT = 4096
"""More values than this are not coded one-hot: the matrix would not fit anywhere."""

SPIKE_SHARE, FEWEST_IN_A_SPIKE, MOST_SPIKES = 0.0005, 20, 8
COMMON_SHARE = 0.002
"""Share of the rows from which a value says nothing about whether the others come again and again."""
ALONE = 0.1
"""Stds around a value less frequent than that within which most rows have to be of it, for it to be a spike."""
SPIKE_GAP, LEAST_GAP = 0.5, 0.1
"""By how much a spike at an end of a column is moved out, in stds of the column: at most, and at least."""
GAP_IN_STEPS = 3.0
"""By how much it is moved out between the two, in stds of what last value and action leave open about the next. A wider
gap would be a jump next to which the noise of a step is small, and small noise is generated less exactly."""
FAR_MORE = 4
"""Times as frequent as the one that comes after the most that there may be, for a value to be a spike among many."""
STANDS_OUT = 20
"""Times the mean count of the other values that a spike is as frequent."""
MOST_LEVELS = 4096
"""Different real numbers up to which a column is quantised, if all of them come again and again."""
LATTICE_HOLES = 2
"""Steps of a lattice for each value that is seen, at most."""
MOST_CATEGORIES = 32
"""Different whole numbers up to which a column is one of categories."""
LARGEST_BOOK = 1024
"""Different observations up to which they are modelled as wholes."""
SMALL_BOOK = 64
"""Different observations up to which that is done even where the columns one by one take fewer categories."""
TOLD_APART = 1e-6
"""Share of a column's range by which two of its values differ at least."""
REPEATS = 10
"""How often a value comes, on average, where values come again and again."""
UNSEEN = 0.005
"""Share of the observations that may be the only ones of their kind in a book. By Good and Turing's estimate, as many
of the observations to come are not in it."""

Integers = Literal["categorical", "ordered"]
log = logging.getLogger(__name__)


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
    for chunk in rows.chunks(CHUNK):
        first = first or chunk
        for field, array in chunk.modelled().items():
            name = "observation" if field == "next_observation" else field
            here = Profile.of(array.reshape(len(chunk), -1))
            seen[name] = seen[name].merge(here) if name in seen else here
    if first is None:
        raise DataError("there are no rows: expected at least one transition")
    return first, seen


def are_pairs(rows: RowSource) -> bool:
    """Whether the rows are no more than pairs of observation and action: all next observations are 0, and no other."""
    found = False
    for chunk in rows.chunks(CHUNK):
        if chunk.next_observation.any():
            return False
        found = found or bool(chunk.observation.any())
    return found


@dataclass(frozen=True)
class Twice:
    """Rows with their observations in the place of next observations, so that only those are looked at."""

    rows: RowSource

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self, rows: int) -> Iterator[Transitions]:
        return (replace(chunk, next_observation=chunk.observation) for chunk in self.rows.chunks(rows))


def sample(rows: RowSource, limit: int = 1 << 17) -> dict[str, Array]:
    """Some rows of observation (with next observation), action, reward and extra columns, as columns (n, W) of
    float64."""
    drawn: dict[str, RowSample] = {}
    for chunk in rows.chunks(CHUNK):
        arrays = chunk.modelled()
        for field in arrays:
            if field in ("next_observation", "terminal"):
                continue
            kept = drawn.setdefault(field, RowSample(0, limit))
            for name in (field, "next_observation") if field == "observation" else (field,):
                kept.add(arrays[name].reshape(len(chunk), -1).astype(np.float64))
    return {field: kept.rows for field, kept in drawn.items()}


@dataclass(frozen=True)
class Steps:
    """Observations, actions and next observations of some rows, as columns of float64."""

    before: Array
    action: Array
    after: Array

    def open_share(self, column: int) -> float:
        """The std of what a line through last value and actions leaves open about a next value, in stds of it."""
        known = np.concatenate([self.before[:, [column]], self.action, np.ones((len(self.action), 1))], axis=1)
        after = self.after[:, column]
        found = np.linalg.lstsq(known, after, rcond=None)[0]
        spread = _std(after)
        return _std(after - known @ found) / spread if spread > 0 else 0.0


def steps(rows: RowSource) -> Steps:
    """A sample, smaller for wider rows."""
    kept: RowSample | None = None
    widths: list[int] = []
    for chunk in rows.chunks(CHUNK):
        parts = [
            getattr(chunk, field).reshape(len(chunk), -1).astype(np.float64)
            for field in ("observation", "action", "next_observation")
        ]
        if kept is None:
            widths = [part.shape[1] for part in parts]
            kept = RowSample(0, min(MOST_STEPS, MOST_NUMBERS // sum(widths)))
        kept.add(np.concatenate(parts, axis=1))
    assert kept is not None
    return Steps(*np.split(kept.rows, np.cumsum(widths)[:-1], axis=1))


def grouped(found: tuple[Kind, ...], values: Array, rows: RowSource, coding: Coding) -> tuple[Kind, ...]:
    """`found` with neighbouring columns of 0 and 1 that always sum to 1 as one-hot groups.

    A group is the shortest run of columns of which exactly one is 1, in `values`, a sample, and then in all rows.
    """
    single = all(kind.source_width == 1 for kind in found)
    flags = [_holds_flags(kind) for kind in found]
    if not single or sum(flags) < 2:
        return found
    groups, start = [], 0
    while start < len(found):
        end = _group_end(values, flags, start)
        if end is not None:
            groups.append((start, end))
        start = start + 1 if end is None else end
    for chunk in rows.chunks(CHUNK) if groups else ():
        for name in PAIR:
            columns = getattr(chunk, name).reshape(len(chunk), -1)
            groups = [(start, end) for start, end in groups if (columns[:, start:end].sum(1) == 1).all()]
    better: list[Kind] = list(found)
    for start, end in reversed(groups):
        ones = tuple(place for place in range(end - start) if not isinstance(found[start + place], kinds.Constant))
        seen = ones if len(ones) < end - start else ()
        better[start:end] = [kinds.OneHot(end - start, coding, seen)]
    return tuple(better)


def _holds_flags(kind: Kind) -> bool:
    if isinstance(kind, kinds.Constant):
        return kind.value == 0
    return isinstance(kind, kinds.Binary) and (kind.low, kind.high) == (0.0, 1.0)


def _group_end(values: Array, flags: list[bool], start: int) -> int | None:
    """Where the shortest group that begins at `start` ends."""
    total = np.zeros(len(values))
    for column in range(start, len(flags)):
        if not flags[column]:
            return None
        total += values[:, column]
        if total.max() > 1:
            return None
        if column > start and total.min() == 1:
            return column + 1
    return None


def finite(found: tuple[Kind, ...], values: Array, coding: Coding, rows: RowSource, field: str) -> tuple[Kind, ...]:
    """The kinds `found` of a field's columns, those of few different whole numbers as categories.

    All columns of observations together become one Codebook if they hold only whole numbers and codes, and as wholes
    take few different values that come again and again. `values` is a sample of the columns, for a first look.
    """
    if field == "observation" and all(isinstance(kind, _FINITE) and _is_exact(kind) for kind in found):
        book = _book(rows, found)
        if book is not None:
            return (kinds.Codebook(book, coding),)
    starts = first_columns(found)
    likely = [
        column
        for column, kind in zip(starts, found, strict=True)
        if isinstance(kind, kinds.Integer) and _is_exact(kind) and len(np.unique(values[:, column])) <= MOST_CATEGORIES
    ]
    known = _distinct(rows, field, likely) if likely else {}
    better: list[Kind] = []
    for column, kind in zip(starts, found, strict=True):
        value = known.get(column, ())
        if 0 < len(value) <= MOST_CATEGORIES and len(values) >= REPEATS * len(value):
            kind = kinds.Codebook(tuple((number,) for number in sorted(value)), coding)
        better.append(kind)
    return tuple(better)


def _distinct(rows: RowSource, field: str, columns: Sequence[int]) -> dict[int, set[float]]:
    """The different values of some columns of a field, in all rows: a rare one may be what matters."""
    found: dict[int, set[float]] = {column: set() for column in columns}
    for chunk in rows.chunks(CHUNK):
        for name in (field, "next_observation") if field == "observation" else (field,):
            array = chunk.arrays()[name].reshape(len(chunk), -1)
            for column, values in found.items():
                if len(values) <= MOST_CATEGORIES:
                    values.update(np.unique(array[:, column]).astype(np.float64).tolist())
    return found


_FINITE = (kinds.Constant, kinds.Binary, kinds.Integer, kinds.Categorical, kinds.OneHot)


def _is_exact(kind: Kind) -> bool:
    """Whether float64 tells all values of a column of whole numbers from each other."""
    ends = (kind.value,) if isinstance(kind, kinds.Constant) else (getattr(kind, "low", 0), getattr(kind, "high", 0))
    return bool(max(map(abs, ends)) <= 2**53)


def _book(rows: RowSource, found: tuple[Kind, ...]) -> tuple[tuple[float, ...], ...] | None:
    """The different observations, next ones too, in increasing order; None where they are one, or too many."""
    if sum(not isinstance(kind, kinds.Constant) for kind in found) == 1 and not isinstance(found[0], kinds.Integer):
        return None  # a declared set of values, which is known better than from the rows
    seen: dict[bytes, int] = {}
    total = 0
    for chunk in rows.chunks(CHUNK):
        for name in PAIR:
            keys, counts = np.unique(
                kinds.as_keys(getattr(chunk, name).reshape(len(chunk), -1).astype(np.float64)), return_counts=True
            )
            for key, count in zip(keys, counts.tolist(), strict=True):
                seen[key.tobytes()] = seen.get(key.tobytes(), 0) + count
            total += len(chunk)
        if len(seen) > LARGEST_BOOK:
            return None
    once = sum(count == 1 for count in seen.values())
    if len(seen) < 2 or total < 2 * REPEATS * len(seen) or once > UNSEEN * total:
        return None
    book = np.frombuffer(b"".join(seen), np.float64).reshape(len(seen), -1)
    if len(book) > max(SMALL_BOOK, 2 * sum(len(np.unique(column)) for column in book.T)):
        return None  # columns that vary each by itself, or nearly so, are fewer categories column by column
    return tuple(sorted(map(tuple, book.tolist())))


def _apart(values: Array) -> tuple[float, ...]:
    """The levels among increasing values. Values that differ only by rounding (0.3 and 0.1 + 0.2) are one level: the
    matrix is float32 and could not tell them apart."""
    exact = values.astype(np.float64)
    is_new = np.diff(exact) > TOLD_APART * (exact[-1] - exact[0])
    kept: list[float] = exact[np.concatenate([[True], is_new])].tolist()
    return tuple(kept)


def special(found: tuple[Kind, ...], values: Array, seen: Profile, told: Steps | None = None) -> tuple[Kind, ...]:
    """`found` with the columns of real numbers in `values`, a sample, that are no smooth ones as what they are. `told`
    are steps of observations.

    A spike is a value of 1 in 500 rows, or of 1 in 2,000 where hardly any others are near, and many times as frequent
    as the others. A column of which every value comes again and again is quantised: its values are levels. One of two
    values holds a flag.
    """
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        if isinstance(kind, (kinds.Continuous, kinds.Bounded)) and seen.two_valued[column]:
            kind = kinds.Binary(*seen.span(column))
        elif isinstance(kind, (kinds.Continuous, kinds.Bounded)):
            value, count = np.unique(values[:, column], return_counts=True)
            often, common = (
                count >= max(share * len(values), FEWEST_IN_A_SPIKE) for share in (SPIKE_SHARE, COMMON_SHARE)
            )
            others = count[~common]
            again = others.sum() >= REPEATS * len(others) or (
                len(values) >= REPEATS * len(value) and _is_lattice(value)
            )
            if 2 < len(value) <= MOST_LEVELS and again:
                kind = kinds.Levels(_apart(value))
            else:
                often &= count >= STANDS_OUT * (count[~often].mean() if not often.all() else 1.0)
                rare = np.flatnonzero(often & ~common)
                often[rare] = _near(value, count, rare, ALONE * _std(values[:, column])) < 2 * count[rare]
                if (
                    np.count_nonzero(often) > MOST_SPIKES
                ):  # values repeat for some other reason: few stand out from these
                    often &= common & (count >= FAR_MORE * np.sort(count)[-1 - MOST_SPIKES])
                if 0 < np.count_nonzero(often) <= MOST_SPIKES:
                    low, high = (kind.low, kind.high) if isinstance(kind, kinds.Bounded) else seen.span(column)
                    low, high = (value[0] if often[0] else low), (value[-1] if often[-1] else high)
                    share = SPIKE_GAP if told is None else GAP_IN_STEPS * told.open_share(column)
                    gap = float(np.clip(share, LEAST_GAP, SPIKE_GAP)) * _std(values[:, column])
                    kind = kinds.Spiked(float(low), float(high), tuple(value[often].tolist()), gap)
        better.append(kind)
    return tuple(better) if told is None else _tied(better, values)


def _is_lattice(value: Array) -> bool:
    """Whether increasing values are nearly all multiples of a step in their range: those of a sensor that rounds, of
    which it seldom shows the outer ones."""
    grain = grain_of(_apart(value)) if len(value) > 2 else 0.0
    return bool(grain) and (float(value[-1]) - float(value[0])) / grain < LATTICE_HOLES * len(value)


def one_sided(found: tuple[Kind, ...], seen: Profile) -> tuple[Kind, ...]:
    """`found` with columns of real numbers that are never below 0, or never above, as bounded there: no negative price
    or mass. The bound is the last number seen."""
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        low, high = seen.span(column)
        if isinstance(kind, kinds.Continuous) and (low >= 0 or high <= 0):
            kind = kinds.Bounded(low if low >= 0 else -math.inf, high if high <= 0 else math.inf)
        better.append(kind)
    return tuple(better)


def _tied(found: list[Kind], values: Array) -> tuple[Kind, ...]:
    """`found` with columns tied to each other that have their only spike in the same rows of `values`, a sample."""
    groups: dict[Any, list[tuple[int, kinds.Spiked]]] = {}
    for place, (column, kind) in enumerate(zip(first_columns(found), found, strict=True)):
        if isinstance(kind, kinds.Spiked) and len(kind.spikes) == 1:
            (spike,) = kind.spikes
            rows = np.packbits(values[:, column] == spike).tobytes()
            groups.setdefault((rows, spike == kind.low, spike == kind.high), []).append((place, kind))
    for number, members in enumerate(group for group in groups.values() if len(group) > 1):
        for place, kind in members:
            found[place] = replace(kind, tied=number)
    return tuple(found)


def _near(value: Array, count: Array, places: Array, distance: float) -> Array:
    """How many rows are of a value within `distance` of each at these places, where values in increasing order have
    these counts."""
    before = np.concatenate([[0], np.cumsum(count)])
    exact = value.astype(np.float64)
    at = exact[places]
    first, last = np.searchsorted(exact, at - distance, "left"), np.searchsorted(exact, at + distance, "right")
    near: Array = before[last] - before[first]
    return near


def _std(values: Array) -> float:
    """In units of the power of two above the largest value, so that no square of it overflows or vanishes."""
    exponent = int(np.frexp(np.abs(values).max())[1])
    return math.ldexp(float(np.ldexp(values, -exponent).std()), exponent)


def warn_of_integers(found: tuple[Kind, ...], values: Array) -> None:
    """Say which columns of whole numbers are taken as ordered, in case they are names of something."""
    ordered = [
        column
        for column, kind in zip(first_columns(found), found, strict=True)
        if isinstance(kind, kinds.Integer) and len(np.unique(values[:, column])) > MOST_CATEGORIES
    ]
    if ordered:
        log.warning(
            "%d observation columns hold more than %d different integers (the first is column %d) and are modelled as "
            "ordered numbers. If they are ids without an order, declare them: pass observation_space with a Discrete "
            "part for each",
            len(ordered), MOST_CATEGORIES, ordered[0],
        )  # fmt: skip


def observed_kind(seen: Profile, column: int) -> Kind:
    """The kind of a column about which only the data is known."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    if not seen.whole[column]:
        return kinds.Continuous()
    return (kinds.Binary if seen.two_valued[column] else kinds.Integer)(*seen.span(column))


def extra_kinds(seen: Profile, values: Array, rows: RowSource, field: str, coding: Coding) -> tuple[Kind, ...]:
    """The kinds of an extra column. A few different numbers that come again and again, such as the discounts of n-step
    rows, are categories, so that they come back exactly. Discounts stay within the range seen."""
    found: list[Kind] = [observed_kind(seen, column) for column in range(len(seen.low))]
    likely = [
        column
        for column, kind in enumerate(found)
        if isinstance(kind, (kinds.Continuous, kinds.Integer))
        and _is_exact(kind)
        and len(np.unique(values[:, column])) <= MOST_CATEGORIES
    ]
    for column, value in (_distinct(rows, field, likely) if likely else {}).items():
        if len(value) == 2:
            found[column] = kinds.Binary(*sorted(value))
        elif len(value) <= MOST_CATEGORIES and len(values) >= REPEATS * len(value):
            found[column] = kinds.Codebook(tuple((number,) for number in sorted(value)), coding)
    if field == f"{EXTRA}discount" and isinstance(found[0], kinds.Continuous):
        found[0] = kinds.Bounded(*seen.span(0))
    return tuple(found)


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
