"""What a column holds, and how it enters the matrix that the diffusion model sees and comes back out of it.

A kind turns `source_width` columns of a field into `matrix_width` columns of float64 and back. Decoding takes any
finite matrix to values that the column could really have held: whole numbers stay whole, categories stay valid.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from synther.data.codes import CODINGS, Coding, code_width, decode_index, encode_index
from synther.data.spaces import number_from_json, number_to_json
from synther.errors import DataError, FormatError
from synther.schema import checked

Array = NDArray[Any]
Matrix = NDArray[np.float64]


_WIDEST = 1_000_000


class Kind(ABC):
    """Abstract; its subclasses are final."""

    scaled: ClassVar[bool] = False
    """Whether the matrix columns are to be scaled before the model sees them."""

    @property
    def source_width(self) -> int:
        return 1

    @property
    def matrix_width(self) -> int:
        return 1

    @abstractmethod
    def encode(self, source: Array) -> Matrix:
        """Columns of a field (N, source_width) to columns of the matrix (N, matrix_width)."""

    @abstractmethod
    def decode(self, matrix: Matrix) -> Array:
        """The way back, for any finite matrix."""

    @property
    def scaled_columns(self) -> tuple[bool, ...]:
        """`scaled`, for each column of the matrix."""
        return (self.scaled,) * self.matrix_width

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Above which each of its flags is set. A flag is a figure of near 0 or near 1, made from the matrix columns,
        that decides between two values."""
        return ()

    lowest_threshold: ClassVar[float] = 0.05
    """A poor generator is not made to look right by calling noise an event."""

    def flags(self, matrix: Matrix) -> Matrix:
        """The flags of rows (N, matrix_width): (N, F)."""
        return np.empty((len(matrix), 0))

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Kind:
        return self

    @property
    def class_count(self) -> int:
        """How many different values it has, where these are few and known; else 0."""
        return 0

    def classes(self, source: Array) -> NDArray[np.int64]:
        """Which of these values each row of `source` has, counted from 0. (N,)"""
        raise NotImplementedError

    @property
    def expected(self) -> str:
        """What `misfit` lets through, for an error text."""
        return "any number"

    def misfit(self, source: Array) -> NDArray[np.bool_] | None:
        """Which rows of `source` this kind cannot encode (None: it can encode any)."""
        return None

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the matrix columns, made from those of the source columns."""
        return names


@final
@dataclass(frozen=True)
class Constant(Kind):
    """The same value in every row: not modelled, and returned exactly (integers above 2**53 too)."""

    value: int | float

    @property
    def matrix_width(self) -> int:
        return 0

    @property
    def expected(self) -> str:
        return f"{self.value!r}, the only value of the rows the layout was made from"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return np.asarray(source[:, 0] != self.value)

    def encode(self, source: Array) -> Matrix:
        return np.empty((len(source), 0))

    def decode(self, matrix: Matrix) -> Array:
        return np.full((len(matrix), 1), self.value)

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return ()


@final
@dataclass(frozen=True)
class Continuous(Kind):
    """Any real number."""

    scaled: ClassVar[bool] = True

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return matrix


@final
@dataclass(frozen=True)
class Bounded(Kind):
    """Real numbers of a box: what leaves it is clipped. A side without a bound is infinite.

    NOTE[paper]: the reference never clips, and 3 % of its actions leave the box.
    """

    scaled: ClassVar[bool] = True
    low: float
    high: float

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.clip(matrix, self.low, self.high)


@final
@dataclass(frozen=True)
class Spiked(Kind):
    """Real numbers from `low` to `high` of which some come again and again: a clipped velocity, a reward of exactly 0.

    A smooth generator scatters such a value to both sides. So a spike at an end of the range is moved out by `gap`, and
    what is generated near there is that value again. A spike inside the range has a matrix column of its own, 1 where
    the number is that spike and else 0. Thresholds are set so that each spike comes as often as in the real rows.

    NOTE[paper]: the reference treats them as any other number; half of the values of a spike then come out on its
    wrong side, which is what its worst columns lose.
    """

    scaled: ClassVar[bool] = True
    lowest_threshold: ClassVar[float] = -1.0
    low: float
    high: float
    spikes: tuple[float, ...]
    """In increasing order."""
    gap: float
    cuts: tuple[float, ...] = ()
    """The threshold of each spike, from 0 (at the end of the range) to 1; one half where none are given."""

    def __post_init__(self) -> None:
        if not self.cuts:
            object.__setattr__(self, "cuts", (0.5,) * len(self.spikes))

    @property
    def _inner(self) -> tuple[float, ...]:
        return tuple(spike for spike in self.spikes if self.low < spike < self.high)

    @property
    def matrix_width(self) -> int:
        return 1 + len(self._inner)

    @property
    def scaled_columns(self) -> tuple[bool, ...]:
        return (True, *(False for _ in self._inner))

    @property
    def thresholds(self) -> tuple[float, ...]:
        return self.cuts

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Spiked:
        return replace(self, cuts=thresholds)

    def flags(self, matrix: Matrix) -> Matrix:
        return np.column_stack(list(self._each_flag(matrix)))

    def _each_flag(self, matrix: Matrix) -> Iterator[Matrix]:
        """The flag of each spike, (N,)."""
        value, inner = matrix[:, 0], iter(matrix[:, 1:].T)
        for spike in self.spikes:
            if spike == self.low:
                yield (self.low - value) / self.gap
            elif spike == self.high:
                yield (value - self.high) / self.gap
            else:  # where too few or too many flags are set, the rows that are nearest to the spike are the ones
                far = np.abs(value - spike) / (4 * self.gap)
                yield np.where(next(inner) > 0.5, 0.5 + 0.5 / (1.0 + far), 0.5 - far)

    def encode(self, source: Array) -> Matrix:
        value = source.astype(np.float64)
        moved = value.copy()
        if self.low in self.spikes:
            moved -= self.gap * (value == self.low)
        if self.high in self.spikes:
            moved += self.gap * (value == self.high)
        return np.concatenate([moved, value == np.array(self._inner)], axis=1)

    def decode(self, matrix: Matrix) -> Array:
        value = matrix[:, 0].copy()
        # What lies in the gap and is no spike is folded back into the range.
        margin = 1e-6 * self.gap  # the range may have no end
        if self.low in self.spikes:
            np.copyto(value, np.maximum(2 * self.low - value, self.low + margin), where=value <= self.low)
        if self.high in self.spikes:
            np.copyto(value, np.minimum(2 * self.high - value, self.high - margin), where=value >= self.high)
        np.clip(value, self.low, self.high, out=value)
        # Of several spikes whose flags are above their cuts, the one that is furthest above.
        highest = np.zeros(len(value))
        for spike, cut, flag in zip(self.spikes, self.cuts, self._each_flag(matrix), strict=True):
            above = flag - cut
            np.copyto(value, spike, where=above > highest)
            np.maximum(highest, above, out=highest)
        return value[:, None]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return (names[0], *(f"{names[0]}={spike!r}" for spike in self._inner))

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{names[0]}={spike!r}" for spike in self.spikes)


@final
@dataclass(frozen=True)
class Levels(Kind):
    """Real numbers of which there are only some, such as multiples of 0.1: what is generated becomes the nearest."""

    scaled: ClassVar[bool] = True
    values: tuple[float, ...]
    """In increasing order, at least two."""

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.array(self.values)[self._nearest(matrix)]

    def _nearest(self, numbers: Array) -> NDArray[np.int64]:
        values = np.array(self.values)
        return np.searchsorted(values[:-1] + np.diff(values) / 2, numbers)

    @property
    def class_count(self) -> int:
        return len(self.values)

    def classes(self, source: Array) -> NDArray[np.int64]:
        return self._nearest(source[:, 0])


@final
@dataclass(frozen=True)
class Integer(Kind):
    """Whole numbers with an order between them: rounded and clipped.

    NOTE[paper]: the reference rounds nothing but terminals.
    """

    scaled: ClassVar[bool] = True
    low: float
    high: float

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.clip(np.rint(matrix), self.low, self.high)


@final
@dataclass(frozen=True)
class Binary(Kind):
    """Two values, 0 and 1 in the matrix and left unscaled, as the paper leaves terminals."""

    low: float = 0.0
    high: float = 1.0
    threshold: float = 0.5

    @property
    def thresholds(self) -> tuple[float, ...]:
        return (self.threshold,)

    def flags(self, matrix: Matrix) -> Matrix:
        return matrix

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return names

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Binary:
        return replace(self, threshold=thresholds[0])

    @property
    def expected(self) -> str:
        return f"{self.low:g} or {self.high:g}"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return np.asarray((source[:, 0] != self.low) & (source[:, 0] != self.high))

    def encode(self, source: Array) -> Matrix:
        return np.asarray(source == self.high, np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.where(matrix > self.threshold, self.high, self.low)


@final
@dataclass(frozen=True)
class Categorical(Kind):
    """One column of integers `start`, ..., `start + size - 1` without an order between them."""

    size: int
    start: int = 0
    coding: Coding = "onehot"

    def __post_init__(self) -> None:
        _check_code("Categorical", self.size, self.coding)

    @property
    def matrix_width(self) -> int:
        return code_width(self.size, self.coding)

    @property
    def expected(self) -> str:
        return f"an integer from {self.start} to {self.start + self.size - 1}"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        value = source[:, 0]
        return np.asarray((value < self.start) | (value > self.start + self.size - 1) | (value != np.rint(value)))

    @property
    def class_count(self) -> int:
        return self.size

    def classes(self, source: Array) -> NDArray[np.int64]:
        found: NDArray[np.int64] = source[:, 0].astype(np.int64) - self.start
        return found

    def encode(self, source: Array) -> Matrix:
        return encode_index(self.classes(source), self.size, self.coding)

    def decode(self, matrix: Matrix) -> Array:
        return decode_index(matrix, self.size, self.coding)[:, None] + self.start

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self.coding == "bits":
            return _bit_labels(names[0], self.matrix_width)
        return tuple(f"{names[0]}={self.start + value}" for value in range(self.size))


@final
@dataclass(frozen=True)
class OneHot(Kind):
    """`size` columns of which exactly one is 1: a discrete observation, flattened.

    Columns that are never 1 come back as they were: only the places in `seen` are modelled (all of them where it is
    empty).
    """

    size: int
    coding: Coding = "onehot"
    seen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.seen) <= self.size <= _WIDEST:
            raise DataError(f"OneHot: expected at most {_WIDEST:,} columns, got size {self.size}")
        if self.seen and not 0 <= min(self.seen) <= max(self.seen) < self.size:
            raise DataError(f"OneHot: expected places of {self.size} columns")
        _check_code("OneHot", len(self._places), self.coding)

    @property
    def _places(self) -> NDArray[np.int64]:
        return np.array(self.seen if self.seen else range(self.size), np.int64)

    @property
    def source_width(self) -> int:
        return self.size

    @property
    def matrix_width(self) -> int:
        return code_width(len(self._places), self.coding)

    @property
    def expected(self) -> str:
        known = f", the 1 where it has been seen ({len(self.seen)} places)" if self.seen else ""
        return f"one 1 and otherwise 0 in {self.size} columns{known}"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        ones = source == 1
        strange = (ones.sum(1) != 1) | ~(ones | (source == 0)).all(1)
        return np.asarray(strange | ~np.isin(source.argmax(1), self._places))

    @property
    def class_count(self) -> int:
        return len(self._places)

    def classes(self, source: Array) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.searchsorted(self._places, source.argmax(1))
        return found

    def encode(self, source: Array) -> Matrix:
        return encode_index(self.classes(source), self.class_count, self.coding)

    def decode(self, matrix: Matrix) -> Array:
        places = self._places
        rows = np.zeros((len(matrix), self.size))
        rows[np.arange(len(matrix)), places[decode_index(matrix, len(places), self.coding)]] = 1
        return rows

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self.coding == "bits":
            return _bit_labels(names[0], self.matrix_width)
        return tuple(names[place] for place in self._places)


@final
@dataclass(frozen=True)
class Codebook(Kind):
    """Columns that together hold one of a few rows of values, without an order between them.

    A grid world's observation may have 147 columns and only 48 different values. Generated column by column, hardly any
    of them would exist; as one of 48 all do.
    """

    rows: tuple[tuple[float, ...], ...]
    """The rows that were seen, in increasing order."""
    coding: Coding = "onehot"

    def __post_init__(self) -> None:
        _check_code("Codebook", len(self.rows), self.coding)

    @property
    def source_width(self) -> int:
        return len(self.rows[0])

    @property
    def matrix_width(self) -> int:
        return code_width(len(self.rows), self.coding)

    @property
    def expected(self) -> str:
        return f"one of the {len(self.rows)} rows of values that the layout was made from"

    @cached_property
    def _book(self) -> Matrix:
        return np.array(self.rows, np.float64)

    @cached_property
    def _index(self) -> tuple[Array, NDArray[np.int64]]:
        """The rows as keys in increasing order, and their places in the book."""
        keys = as_keys(self._book)
        order = np.argsort(keys)
        return keys[order], order

    def _places(self, source: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each row in the book, and whether it is there."""
        keys, order = self._index
        asked = as_keys(source.astype(np.float64))
        found = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return order[found], keys[found] == asked

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return ~self._places(source)[1]

    @property
    def class_count(self) -> int:
        return len(self.rows)

    def classes(self, source: Array) -> NDArray[np.int64]:
        return self._places(source)[0]

    def encode(self, source: Array) -> Matrix:
        return encode_index(self.classes(source), self.class_count, self.coding)

    def decode(self, matrix: Matrix) -> Array:
        return self._book[decode_index(matrix, len(self.rows), self.coding)]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self.coding == "bits":
            return _bit_labels(names[0], self.matrix_width)
        if self.source_width == 1:
            return tuple(f"{names[0]}={row[0]:.17g}" for row in self.rows)  # whole numbers, up to 2**53
        field = names[0].partition("[")[0]
        return tuple(f"{field}#{zlib.crc32(row.tobytes()):08x}" for row in self._book)


@final
@dataclass(frozen=True)
class Drawn(Kind):
    """Columns that hold one of a few rows of values, which follows from other columns: see following.py.

    Its one column of the matrix has the place of the row here, which the layout turns into a normal number.
    """

    rows: tuple[tuple[float, ...], ...]
    """In increasing order."""

    def __post_init__(self) -> None:
        _check_code("Drawn", len(self.rows), "onehot")

    @property
    def source_width(self) -> int:
        return len(self.rows[0])

    @property
    def expected(self) -> str:
        return self._book.expected

    @cached_property
    def _book(self) -> Codebook:
        return Codebook(self.rows)

    def misfit(self, source: Array) -> NDArray[np.bool_] | None:
        return None if self.source_width == 1 else self._book.misfit(source)  # the nearest number will do

    @property
    def class_count(self) -> int:
        return len(self.rows)

    def classes(self, source: Array) -> NDArray[np.int64]:
        if self.source_width > 1:
            return self._book.classes(source)
        values = np.array(self.rows)[:, 0]
        return np.searchsorted(values[:-1] + np.diff(values) / 2, source[:, 0].astype(np.float64))

    def encode(self, source: Array) -> Matrix:
        return self.classes(source)[:, None].astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.array(self.rows)[np.clip(np.rint(matrix[:, 0]), 0, len(self.rows) - 1).astype(np.int64)]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{names[0]}.drawn",)


def as_keys(rows: Array) -> Array:
    """Rows (N, W) of float64 as (N,) of bytes, which can be sorted and compared as wholes."""
    plain = np.ascontiguousarray(rows + 0.0)  # -0.0 is 0.0
    return plain.view(np.dtype((np.void, plain.itemsize * plain.shape[1])))[:, 0]


def _check_code(name: str, size: int, coding: str) -> None:
    if size < 2:
        raise DataError(f"{name}: expected at least two values, got size {size}; one value is a Constant")
    if coding not in CODINGS:
        raise DataError(f"{name}: expected a coding of {', '.join(CODINGS)}, got {coding!r}")


def _bit_labels(name: str, bits: int) -> tuple[str, ...]:
    return tuple(f"{name}.bit{bit}" for bit in reversed(range(bits)))


_KINDS: dict[str, type[Kind]] = {
    kind.__name__.lower(): kind
    for kind in (Constant, Continuous, Bounded, Spiked, Levels, Integer, Binary, Categorical, OneHot, Codebook, Drawn)
}


def to_json(kind: Kind) -> dict[str, Any]:
    fields = asdict(kind)  # type: ignore[call-overload]  # every kind is a dataclass
    return {"kind": type(kind).__name__.lower(), **{name: number_to_json(value) for name, value in fields.items()}}


def from_json(entry: Any) -> Kind:
    told = checked(entry, dict[str, Any], "the kind of a column")
    name = checked(told.get("kind"), str, "the kind of a column")
    if name not in _KINDS:
        raise FormatError(f"unknown kind of column {name!r}: expected {', '.join(_KINDS)}")
    fields = {option: number_from_json(value) for option, value in told.items() if option != "kind"}
    kind: Kind = checked(fields, _KINDS[name], f"the kind {name!r} of a column")
    return kind
