"""Kinds of columns with unordered values: categories, and groups of columns with a limited set of joint values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from synther.codes import CODINGS, Coding, code_width, decode_index, encode_index
from synther.data.kind import Array, Kind, Matrix
from synther.data.values import nearest
from synther.errors import DataError

_WIDEST = 1_000_000  # maximum number of columns of a one-hot group


@final
@dataclass(frozen=True)
class Categorical(Kind):
    """A column of unordered integers from `start` to `start + size - 1`."""

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
    """A group of `size` columns, exactly one of which is 1 and the others 0: a flattened discrete observation.

    Only the columns in `seen`, which are 1 in some real row, are modelled; the others are decoded as 0. If `seen` is
    empty, all columns are modelled.
    """

    size: int
    coding: Coding = "onehot"
    seen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.seen) <= self.size <= _WIDEST:
            raise DataError(
                f"OneHot: expected at most {_WIDEST:,} columns and at most as many seen places, got size {self.size} "
                f"and {len(self.seen)} seen places"
            )
        if self.seen and not 0 <= min(self.seen) <= max(self.seen) < self.size:
            raise DataError(
                f"OneHot: expected seen places from 0 to {self.size - 1}, got {min(self.seen)} to {max(self.seen)}"
            )
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
        known = f", and the 1 in one of the {len(self.seen)} columns that had one before" if self.seen else ""
        return f"exactly one 1 and otherwise 0 in {self.size} columns{known}"

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
    """A group of columns with a limited set of joint values, which are modelled as one category.

    Example: the observation of a grid world has 147 columns, but only 48 different observations exist. Generated column
    by column, hardly any observation would be valid. Generated as one of 48 categories, all are valid.
    """

    rows: tuple[tuple[float, ...], ...]
    """The joint values that were seen, in increasing order."""
    coding: Coding = "onehot"
    nearest: bool = False
    """Whether any number gets the nearest value. Only for a single column."""

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
        """Keys of the rows in increasing order, and the number of each row in `rows`."""
        keys = as_keys(self._book)
        order = np.argsort(keys)
        return keys[order], order

    def _places(self, source: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the number of each row of `source` in `rows` (N,), and whether it is in `rows` at all (N,)."""
        if self.nearest:
            return nearest(self._book[:, 0], source[:, 0].astype(np.float64)), np.ones(len(source), bool)
        keys, order = self._index
        wanted = as_keys(source.astype(np.float64))
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return order[found], keys[found] == wanted

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
    """A group of columns with a limited set of joint values, drawn from a table given other columns: see following.py.

    The matrix has one column for it: the number of the joint value, which the layout replaces by a normal number.
    """

    rows: tuple[tuple[float, ...], ...]
    """The joint values, in increasing order."""

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
        return self.as_codebook()

    def misfit(self, source: Array) -> NDArray[np.bool_] | None:
        return self._book.misfit(source)

    @property
    def class_count(self) -> int:
        return len(self.rows)

    def classes(self, source: Array) -> NDArray[np.int64]:
        return self._book.classes(source)

    def as_codebook(self) -> Codebook:
        """Return the kind with the same values that is encoded as a category. Numbers get the nearest value."""
        return Codebook(self.rows, nearest=self.source_width == 1)

    def encode(self, source: Array) -> Matrix:
        return self.classes(source)[:, None].astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.array(self.rows)[np.clip(np.rint(matrix[:, 0]), 0, len(self.rows) - 1).astype(np.int64)]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{names[0]}.drawn",)


def as_keys(rows: Array) -> Array:
    """Return rows (N, W) of float64 as keys (N,) of bytes, so that whole rows can be sorted and compared."""
    plain = np.ascontiguousarray(rows + 0.0)  # turns -0.0 into 0.0
    return plain.view(np.dtype((np.void, plain.itemsize * plain.shape[1])))[:, 0]


def _check_code(name: str, size: int, coding: str) -> None:
    if size < 2:
        raise DataError(f"{name}: expected at least two values, got {size}; use Constant for a single value")
    if coding not in CODINGS:
        raise DataError(f"{name}: expected coding to be one of {', '.join(CODINGS)}, got {coding!r}")


def _bit_labels(name: str, bits: int) -> tuple[str, ...]:
    return tuple(f"{name}.bit{bit}" for bit in reversed(range(bits)))
