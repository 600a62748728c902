"""Find the kind of each column, such as real number, flag or category, from the declared spaces and from the rows.

`Layout.infer` calls the functions of this module in this order: `profile` (range of each column), `observation_kinds`
and `action_kinds` (first guess), `grouped` (one-hot groups) and `finite` (categories), and then `special` of
`spikes.py`. Each of them returns the kinds that it was given, with some replaced by better ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from synther.codes import Coding
from synther.data import kinds, spaces
from synther.data.kind import first_columns
from synther.data.kinds import Kind
from synther.data.moments import RowSample
from synther.data.spaces import Space
from synther.data.transitions import EXTRA, PAIR, RowSource, Transitions
from synther.errors import ConfigError, DataError

Array = NDArray[Any]

CHUNK = 1 << 16
MOST_STEPS, MOST_NUMBERS = 1 << 15, 1 << 24
"""Maximum number of rows in the sample of `steps`, and maximum number of values in it."""
LARGEST_ONEHOT = 4096
"""Maximum number of values of a one-hot code. With more, the matrix would not fit into memory."""

MOST_CATEGORIES = 32
"""Maximum number of different whole numbers for which a column is treated as categories."""
LARGEST_BOOK = 1024
"""Maximum number of different observations for which each whole observation is one category (kind `Codebook`)."""
SMALL_BOOK = 64
"""Up to this number of different observations, a Codebook is used even if single columns would have fewer categories
in total."""
REPEATS = 10
"""Values occur again and again if each occurs at least this many times on average."""
UNSEEN = 0.005
"""Maximum share of the observations (next ones included) that occur only once, for a Codebook. By the Good-Turing
estimate, the same share of future observations is missing in the Codebook."""

Integers = Literal["categorical", "ordered"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """Lowest and highest value of each of W columns, in the columns' own dtype, so that large integers stay exact."""

    low: Array
    high: Array
    whole: NDArray[np.bool_]
    """Whether all values are whole numbers."""
    two_valued: NDArray[np.bool_]
    """Whether all values are either `low` or `high`."""

    @classmethod
    def of(cls, values: Array) -> Profile:
        low, high = values.min(0), values.max(0)
        whole = np.ones(values.shape[1], bool)
        if values.dtype.kind == "f":
            # Beyond 2 / eps every float is a whole number, so a column with such values does not count as whole.
            whole = (values == np.rint(values)).all(0) & (np.maximum(-low, high) <= 2 / np.finfo(values.dtype).eps)
        return cls(low, high, whole, ((values == low) | (values == high)).all(0))

    def merge(self, other: Profile) -> Profile:
        """Return the profile of the rows of both."""
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
    """Return the first chunk of `rows`, for its types and spaces, and the profile of each field over all rows.

    Observation and next observation share one profile, because they are the same quantities at two moments.
    """
    first: Transitions | None = None
    seen: dict[str, Profile] = {}
    for chunk in rows.chunks(CHUNK):
        first = first or chunk
        for field, array in chunk.modelled().items():
            name = "observation" if field == "next_observation" else field
            own = Profile.of(array.reshape(len(chunk), -1))
            seen[name] = seen[name].merge(own) if name in seen else own
    if first is None:
        raise DataError("there are no rows: expected at least one transition")
    return first, seen


def are_pairs(rows: RowSource) -> bool:
    """Return whether rows are only pairs of observation and action: all next observations are 0, but not all
    observations."""
    has_observations = False
    for chunk in rows.chunks(CHUNK):
        if chunk.next_observation.any():
            return False
        has_observations = has_observations or bool(chunk.observation.any())
    return has_observations


@dataclass(frozen=True)
class ObservationsTwice:
    """Row source with the observations in the place of next observations, so that only observations are examined."""

    rows: RowSource

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self, rows: int) -> Iterator[Transitions]:
        return (replace(chunk, next_observation=chunk.observation) for chunk in self.rows.chunks(rows))


def sample(rows: RowSource, limit: int = 1 << 17) -> dict[str, Array]:
    """Return at most `limit` random rows of each field except terminal, as float64 columns (n, W).

    The sample of observations also contains next observations.
    """
    samples: dict[str, RowSample] = {}
    for chunk in rows.chunks(CHUNK):
        arrays = chunk.modelled()
        for field in arrays:
            if field in ("next_observation", "terminal"):
                continue
            kept = samples.setdefault(field, RowSample(0, limit))
            for name in (field, "next_observation") if field == "observation" else (field,):
                kept.add(arrays[name].reshape(len(chunk), -1).astype(np.float64))
    return {field: kept.rows for field, kept in samples.items()}


@dataclass(frozen=True)
class Steps:
    """Observations, actions and next observations of a sample of rows, as float64 columns (n, W)."""

    before: Array
    action: Array
    after: Array

    def open_share(self, column: int, left_out: Array) -> float:
        """Return the std of the residual of a linear regression of the next value on the last value of this column and
        the action, divided by the std of the next value. Rows with a value that is `left_out` do not count."""
        known = np.concatenate([self.before[:, [column]], self.action, np.ones((len(self.action), 1))], axis=1)
        after = self.after[:, column]
        if len(left_out):
            counts = ~(np.isin(known[:, 0], left_out) | np.isin(after, left_out))
            known, after = known[counts], after[counts]
        if not len(after):
            return 0.0
        weights = np.linalg.lstsq(known, after, rcond=None)[0]
        spread = std_of(after)
        return std_of(after - known @ weights) / spread if spread > 0 else 0.0


def steps(rows: RowSource) -> Steps:
    """Return observation, action and next observation of a random sample of rows, which is smaller for wide rows."""
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


def grouped(
    found: tuple[Kind, ...], values: Array, rows: RowSource, coding: Coding, fields: Sequence[str]
) -> tuple[Kind, ...]:
    """Return the kinds `found`, with neighbouring columns of 0 and 1 that always sum to 1 merged into one-hot groups.
    They are those of each of the `fields`.

    A group is the shortest run of columns with exactly one 1 in each row. Candidates are found in `values`, a sample,
    and then checked in all rows.
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
        for name in fields:
            columns = getattr(chunk, name).reshape(len(chunk), -1)
            groups = [(start, end) for start, end in groups if (columns[:, start:end].sum(1) == 1).all()]
    better: list[Kind] = list(found)
    for start, end in reversed(groups):
        ones = tuple(place for place in range(end - start) if not isinstance(found[start + place], kinds.Constant))
        seen = ones if len(ones) < end - start else ()
        better[start:end] = [kinds.OneHot(end - start, coding, seen)]
    return tuple(better)


def _holds_flags(kind: Kind) -> bool:
    """Return whether a column holds only 0 and 1, or only 0."""
    if isinstance(kind, kinds.Constant):
        return kind.value == 0
    return isinstance(kind, kinds.Binary) and (kind.low, kind.high) == (0.0, 1.0)


def _group_end(values: Array, flags: list[bool], start: int) -> int | None:
    """Return the end of the shortest one-hot group that begins at column `start`, or None if there is none."""
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
    """Return the kinds `found` of a field, with columns of few different whole numbers as categories.

    All observation columns together become one Codebook if they hold only whole numbers and codes, and the rows have
    few different observations that occur again and again. `values` is a sample of the columns. It is used to rule out
    columns with too many values.
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
    """Return the different values of some columns of a field, in all rows because a rare value may be important.

    The search in a column stops once it has more than MOST_CATEGORIES values.
    """
    distinct: dict[int, set[float]] = {column: set() for column in columns}
    for chunk in rows.chunks(CHUNK):
        for name in (field, "next_observation") if field == "observation" else (field,):
            array = chunk.arrays()[name].reshape(len(chunk), -1)
            for column, values in distinct.items():
                if len(values) <= MOST_CATEGORIES:
                    values.update(np.unique(array[:, column]).astype(np.float64).tolist())
    return distinct


_FINITE = (kinds.Constant, kinds.Binary, kinds.Integer, kinds.Categorical, kinds.OneHot)


def _is_exact(kind: Kind) -> bool:
    """Return whether float64 represents all whole numbers in the range of a column exactly."""
    ends = (kind.value,) if isinstance(kind, kinds.Constant) else (getattr(kind, "low", 0), getattr(kind, "high", 0))
    return bool(max(map(abs, ends)) <= 2**53)


def _book(rows: RowSource, found: tuple[Kind, ...]) -> tuple[tuple[float, ...], ...] | None:
    """Return the different observations, including next observations, in increasing order. Return None if there is
    only one, or if there are too many for a Codebook."""
    if sum(not isinstance(kind, kinds.Constant) for kind in found) == 1 and not isinstance(found[0], kinds.Integer):
        return None  # a declared space gives the possible values of this column, which is better than the values seen
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
        return None  # the columns vary (nearly) independently, and have fewer categories one by one
    return tuple(sorted(map(tuple, book.tolist())))


def one_sided(found: tuple[Kind, ...], seen: Profile) -> tuple[Kind, ...]:
    """Return the kinds `found`, with bounds for real columns that are never negative or never positive, such as a price
    or a mass. The bound is the lowest (or highest) value in the rows, not 0."""
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        low, high = seen.span(column)
        if isinstance(kind, kinds.Continuous) and (low >= 0 or high <= 0):
            kind = kinds.Bounded(low if low >= 0 else -math.inf, high if high <= 0 else math.inf)
        better.append(kind)
    return tuple(better)


def std_of(values: Array) -> float:
    """Return the std. It is computed in units of the power of two above the largest absolute value, so that squares
    neither overflow nor vanish."""
    exponent = int(np.frexp(np.abs(values).max())[1])
    return math.ldexp(float(np.ldexp(values, -exponent).std()), exponent)


def warn_of_integers(found: tuple[Kind, ...], values: Array) -> None:
    """Log a warning about columns of integers that are modelled as ordered numbers, in case they are ids. It is logged
    once, not at every refresh of a generator."""
    ordered = [
        column
        for column, kind in zip(first_columns(found), found, strict=True)
        if isinstance(kind, kinds.Integer) and not kind.circle and len(np.unique(values[:, column])) > MOST_CATEGORIES
    ]
    if ordered:
        _warn_of_integers(len(ordered), ordered[0])


@cache
def _warn_of_integers(count: int, first: int) -> None:
    log.warning(
        "%d observation columns hold more than %d different integers (the first is column %d) and are modelled as "
        "ordered numbers. If they are ids without an order, declare them: pass observation_space with a Discrete part "
        "for each",
        count, MOST_CATEGORIES, first,
    )  # fmt: skip


def observed_kind(seen: Profile, column: int) -> Kind:
    """Return the kind of a column without a declared space, judged by its values."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    if not seen.whole[column]:
        return kinds.Continuous()
    return (kinds.Binary if seen.two_valued[column] else kinds.Integer)(*seen.span(column))


def extra_kinds(seen: Profile, values: Array, rows: RowSource, field: str, coding: Coding) -> tuple[Kind, ...]:
    """Return the kinds of an extra column.

    A few different numbers that occur again and again, such as the discounts of n-step rows, are categories, so that
    they are restored exactly. Discounts are bounded by the range in the rows.
    """
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
    """Return the kinds of observations. Bounds of a Box are ignored, because observations of many environments leave
    the declared bounds."""
    return _by_parts(seen, space or _unknown(seen), coding, lambda part, offset, column: observed_kind(seen, column))


def action_kinds(seen: Profile, space: Space | None, coding: Coding) -> tuple[Kind, ...]:
    """Return the kinds of actions. Bounds of a Box are used, because the environment cannot play an action outside
    them. Real actions without a declared space are bounded by their range in the rows."""
    if space is not None:
        return _by_parts(seen, space, coding, lambda part, offset, column: _boxed(seen, part, offset, column))
    if seen.low.dtype.kind == "f":
        box = spaces.Box(tuple(map(float, seen.low)), tuple(map(float, seen.high)))
        return action_kinds(seen, (box,), coding)
    return tuple(_whole_action(seen, column, coding) for column in range(len(seen.low)))


def _unknown(seen: Profile) -> Space:
    """Return an unbounded Box with one column for each column of the profile."""
    return (spaces.Box.uniform(-math.inf, math.inf, len(seen.low)),)


def _boxed(seen: Profile, part: spaces.Box, offset: int, column: int) -> Kind:
    """Return the kind of an action column, which is number `offset` of a Box."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    if seen.whole[column] and seen.low.dtype.kind == "f":
        return observed_kind(seen, column)  # a discrete action, or a bang-bang controller, recorded as floats
    low, high = float(part.low[offset]), float(part.high[offset])
    if seen.low.dtype.kind == "f":
        return kinds.Bounded(low, high)
    return kinds.Integer(float(np.ceil(low)), float(np.floor(high)))


def _whole_action(seen: Profile, column: int, coding: Coding) -> Kind:
    """Return the kind of an integer action without a declared space: categories, or ordered numbers if the range is too
    large for categories."""
    if seen.constant[column]:
        return seen.constant_kind(column)
    low, high = int(seen.low[column]), int(seen.high[column])
    if high - low >= LARGEST_ONEHOT or high > np.iinfo(np.int64).max:
        return kinds.Integer(*seen.span(column))
    return kinds.Categorical(high - low + 1, low, coding)


def _by_parts(
    seen: Profile, space: Space, coding: Coding, box: Callable[[spaces.Box, int, int], Kind]
) -> tuple[Kind, ...]:
    """Return the kinds of the columns of a space. `box` gives the kind of a Box column, from the part, the number of
    the column in the part, and its number in the field."""
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
