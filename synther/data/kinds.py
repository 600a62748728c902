"""What a column holds, and how it enters the matrix that the diffusion model sees and comes back out of it.

A kind turns `source_width` columns of a field into `matrix_width` columns of float64 and back. Decoding takes any
finite matrix to values that the column could really have held: whole numbers stay whole, categories stay valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from synther.data.codes import CODINGS, Coding, code_width, decode_index, encode_index
from synther.data.spaces import number_from_json, number_to_json
from synther.errors import DataError

Array = NDArray[Any]
Matrix = NDArray[np.float64]


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

    A smooth generator scatters such a value to both sides. So in the matrix each spike stands alone in the middle of a
    stretch 2 `gap` wide, and whatever is generated in there is that value again.

    NOTE[paper]: the reference treats them as any other number; half of the values of a spike then come out on its
    wrong side, which is what its worst columns lose.
    """

    scaled: ClassVar[bool] = True
    low: float
    high: float
    spikes: tuple[float, ...]
    """In increasing order."""
    gap: float

    def encode(self, source: Array) -> Matrix:
        values = source.astype(np.float64)
        below, up_to = (np.searchsorted(self.spikes, values, side) for side in ("left", "right"))
        return np.asarray(values + self.gap * (below + up_to))

    def decode(self, matrix: Matrix) -> Array:
        values = matrix.copy()  # which lies together, as a column of the matrix does not
        spikes = np.array([*self.spikes, np.inf])
        starts = spikes + 2 * self.gap * np.arange(len(spikes))
        passed = np.searchsorted(starts[:-1] + 2 * self.gap, values, "left")
        in_a_spike = values >= starts.take(passed)
        values -= 2 * self.gap * passed
        np.clip(values, self.low, self.high, out=values)
        np.copyto(values, spikes.take(passed), where=in_a_spike)
        return values


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

    def encode(self, source: Array) -> Matrix:
        return encode_index(source[:, 0].astype(np.int64) - self.start, self.size, self.coding)

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

    def encode(self, source: Array) -> Matrix:
        places = self._places
        return encode_index(np.searchsorted(places, source.argmax(1)), len(places), self.coding)

    def decode(self, matrix: Matrix) -> Array:
        places = self._places
        rows = np.zeros((len(matrix), self.size))
        rows[np.arange(len(matrix)), places[decode_index(matrix, len(places), self.coding)]] = 1
        return rows

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self.coding == "bits":
            return _bit_labels(names[0], self.matrix_width)
        return tuple(names[place] for place in self._places)


def _check_code(name: str, size: int, coding: str) -> None:
    if size < 2:
        raise DataError(f"{name}: expected at least two values, got size {size}; one value is a Constant")
    if coding not in CODINGS:
        raise DataError(f"{name}: expected a coding of {', '.join(CODINGS)}, got {coding!r}")


def _bit_labels(name: str, bits: int) -> tuple[str, ...]:
    return tuple(f"{name}.bit{bit}" for bit in reversed(range(bits)))


_KINDS: dict[str, type[Kind]] = {
    kind.__name__.lower(): kind
    for kind in (Constant, Continuous, Bounded, Spiked, Integer, Binary, Categorical, OneHot)
}


def to_json(kind: Kind) -> dict[str, Any]:
    fields = asdict(kind)  # type: ignore[call-overload]  # every kind is a dataclass
    return {"kind": type(kind).__name__.lower(), **{name: number_to_json(value) for name, value in fields.items()}}


def from_json(entry: dict[str, Any]) -> Kind:
    kind = _KINDS.get(entry["kind"])
    if kind is None:
        raise DataError(f"unknown kind of column {entry['kind']!r}: expected {', '.join(_KINDS)}")
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return kind(**{name: number_from_json(value) for name, value in fields.items() if name != "kind"})
