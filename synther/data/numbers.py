"""Kinds of columns with real numbers. `Numbers` decodes all of them together, on any device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.kind import LOWEST_THRESHOLD, Array, Kind, Matrix
from synther.data.quantiles import row_index
from synther.errors import DataError

_CPU = torch.device("cpu")
_SURE = -1.0, 2.0  # flags are clamped to this range before those of tied columns are averaged
_FIRST = 1e9  # added to the flag of a spike that tied columns share, so that it is chosen before other spikes


class Real(Kind):
    """Abstract base class of the kinds with real numbers."""

    scaled: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[float, float]:
        return -math.inf, math.inf

    def encode(self, source: Array) -> Matrix:
        return source.astype(np.float64)

    def decode(self, matrix: Matrix) -> Array:
        return np.asarray(self._alone(_by_columns(matrix)).numpy().T)

    @cached_property
    def _alone(self) -> Numbers:
        return Numbers([self], [0], _CPU)


@final
@dataclass(frozen=True)
class Continuous(Real):
    """Any real number."""


@final
@dataclass(frozen=True)
class Bounded(Real):
    """Real numbers from `low` to `high`. Generated numbers are clipped to this range. Either end may be infinite.

    NOTE[paper]: the reference never clips, and 3 % of its actions leave the box.
    """

    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


@final
@dataclass(frozen=True)
class Wrapped(Real):
    """Real numbers on a circle, such as angles. Generated numbers are wrapped into [low, low + period)."""

    low: float
    period: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and 0 < self.period < math.inf):
            raise DataError(
                f"a circular column: expected a finite low and a finite period above 0, "
                f"got low {self.low} and period {self.period}"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.low + self.period

    @property
    def circle(self) -> float:
        return self.period


@final
@dataclass(frozen=True)
class Logarithmic(Real):
    """Positive numbers with changes in proportion to them, such as prices. The matrix holds their logarithms."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise DataError(
                f"a logarithmic column: expected 0 < low < high, finite numbers above 0, got low {self.low} and "
                f"high {self.high}"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def expected(self) -> str:
        return "a number above 0"

    def misfit(self, source: Array) -> NDArray[np.bool_]:
        return np.asarray(~(source[:, 0] > 0))

    def encode(self, source: Array) -> Matrix:
        return np.log(source.astype(np.float64))


@final
@dataclass(frozen=True)
class Spiked(Real):
    """Real numbers from `low` to `high` with spikes: values that occur again and again, such as a reward of exactly 0.

    A smooth generator scatters the rows of a spike to both sides of it. So the matrix holds a spike at an end of the
    range (a clipped velocity) moved outwards by `gap`, and generated numbers out there are decoded to the spike. A
    spike inside the range gets its own column of the matrix: 1 in rows with the spike, else 0. Thresholds are set such
    that each spike is as frequent as in the real rows.

    A spike may also lie beyond the range, such as -999 for a missing value. It has a column of its own too. The matrix
    holds `usual` in place of the number, because -999 would determine the scale of the column.

    NOTE[paper]: the reference treats spikes like any other number. Half of the generated values of a spike then lie on
    its wrong side. These are the columns that it reproduces worst.
    """

    low: float
    high: float
    spikes: tuple[float, ...]
    """The spikes, in increasing order. Those beyond the range have a column of their own, like those inside."""
    gap: float
    """Distance by which a spike at an end of the range is moved outwards."""
    cuts: tuple[float, ...] = ()
    """Threshold of each spike's flag, 0.5 by default. The flag of a spike at an end of the range is 0 at that end and 1
    at one gap beyond."""
    tied: int | None = None
    """Columns of a field with the same number have a spike in the same rows, such as forces that are 0 together."""
    tied_spike: float | None = None
    """This spike. None: the only one."""
    usual: float = 0.0
    """The number that the matrix holds in rows with a spike beyond the range."""
    by_flag: bool = False
    """Whether the flag alone decides which rows have a spike inside the range, not also how near the number is."""

    def __post_init__(self) -> None:
        if not self.cuts:
            object.__setattr__(self, "cuts", (0.5,) * len(self.spikes))

    @property
    def bounds(self) -> tuple[float, float]:
        return min(self.low, *self.spikes), max(self.high, *self.spikes)

    @property
    def inner(self) -> tuple[float, ...]:
        """The spikes with a column of their own: all that are not at an end of the range."""
        return tuple(spike for spike in self.spikes if spike not in (self.low, self.high))

    @property
    def shared(self) -> float | None:
        """The spike that tied columns have in the same rows. None if the column is not tied."""
        if self.tied is None:
            return None
        return self.spikes[0] if self.tied_spike is None else self.tied_spike

    @property
    def matrix_width(self) -> int:
        return 1 + len(self.inner)

    @property
    def scaled_columns(self) -> tuple[bool, ...]:
        return (True, *(False for _ in self.inner))

    @property
    def thresholds(self) -> tuple[float, ...]:
        return self.cuts

    @property
    def lowest_threshold(self) -> float:
        return LOWEST_THRESHOLD if self.by_flag else -1.0

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Spiked:
        return replace(self, cuts=thresholds)

    def flags(self, matrix: Matrix) -> Matrix:
        """Return the flag of each spike in rows of the matrix (N, matrix_width), before it is cut. (N, F)"""
        return np.asarray(self._alone.flags(_by_columns(matrix)).numpy().T)

    def encode(self, source: Array) -> Matrix:
        value = source.astype(np.float64)
        beyond = [spike for spike in self.inner if not self.low < spike < self.high]
        moved = np.where(np.isin(value, beyond), self.usual, value)
        if self.low in self.spikes:
            moved -= self.gap * (value == self.low)
        if self.high in self.spikes:
            moved += self.gap * (value == self.high)
        return np.concatenate([moved, value == np.array(self.inner)], axis=1)

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return (names[0], *(f"{names[0]}={spike!r}" for spike in self.inner))

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{names[0]}={spike!r}" for spike in self.spikes)


class Numbers:
    """Encodes and decodes columns of real numbers together, on a device."""

    def __init__(
        self, kinds: Sequence[Real], starts: Sequence[int], device: torch.device, fields: Sequence[str] | None = None
    ) -> None:
        """`starts` are the first columns of the `kinds` in the matrix. `fields` names the field of each kind, because
        only columns of the same field are tied to each other."""
        self._rows = row_index(starts, device)
        bounds = torch.tensor([kind.bounds for kind in kinds], dtype=torch.float64, device=device)
        self._low, self._high = bounds[:, :1], bounds[:, 1:]
        wrapped = [place for place, kind in enumerate(kinds) if isinstance(kind, Wrapped)]
        self._wrapped = row_index(wrapped, device) if wrapped else None
        logarithmic = [place for place, kind in enumerate(kinds) if isinstance(kind, Logarithmic)]
        self._logarithmic = row_index(logarithmic, device) if logarithmic else None
        spiked = [place for place, kind in enumerate(kinds) if isinstance(kind, Spiked)]
        self._spiked, self._spikes = None, None
        if spiked:
            self._spiked = row_index(spiked, device)
            spiked_kinds: list[Any] = [kinds[place] for place in spiked]
            spiked_fields = [None if fields is None else fields[place] for place in spiked]
            self._spikes = _Spikes(spiked_kinds, [starts[place] for place in spiked], device, spiked_fields)

    def __call__(self, matrix: Tensor) -> Tensor:
        """Decode the columns (D, N) of the matrix to numbers (C, N)."""
        numbers = matrix[self._rows]
        if self._wrapped is not None:
            own, low, high = (each[self._wrapped] for each in (numbers, self._low, self._high))
            numbers = numbers.clone()
            numbers[self._wrapped] = low + torch.remainder(own - low, high - low)
        if self._logarithmic is not None:
            own, low, high = (each[self._logarithmic] for each in (numbers, self._low, self._high))
            numbers = numbers.clone()
            numbers[self._logarithmic] = own.clamp(low.log(), high.log()).exp()
        numbers = numbers.clamp(self._low, self._high)
        if self._spikes is not None:
            numbers[self._spiked] = self._spikes.decoded(matrix)
        return numbers

    def put(self, numbers: Tensor, matrix: Tensor) -> None:
        """Encode numbers (C, N) and write them into their columns of `matrix` (D, N): the inverse of decoding."""
        if self._logarithmic is not None or self._spikes is not None:
            numbers = numbers.clone()
        if self._logarithmic is not None:
            numbers[self._logarithmic] = numbers[self._logarithmic].log()
        if self._spikes is not None:
            numbers[self._spiked] = self._spikes.moved(numbers[self._spiked], matrix)
        matrix[self._rows] = numbers

    def flags(self, matrix: Tensor) -> Tensor:
        """Return the flags of the spikes, column by column, before they are cut. (F, N)"""
        return matrix[:0] if self._spikes is None else self._spikes.flags(matrix)


class _Spikes:
    """Encodes and decodes columns with spikes together.

    Each column has the same number of slots: one for a spike at the lower end, one for each spike inside the range, and
    one for a spike at the upper end. Slots without a spike have an infinite cut.
    """

    def __init__(
        self, kinds: Sequence[Spiked], starts: Sequence[int], device: torch.device, fields: Sequence[str | None]
    ) -> None:
        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        self._rows = row_index(starts, device)
        self._low, self._high, self._gap = (
            column([getattr(kind, name) for kind in kinds]) for name in ("low", "high", "gap")
        )
        self._margin = 1e-6 * self._gap  # distance of other numbers to a spike at an end; the range may be infinite
        most = max(len(kind.inner) for kind in kinds)
        slots = [_slots(kind, most) for kind in kinds]
        self._at, self._cuts = (
            [column([slot[number][part] for slot in slots]) for number in range(most + 2)] for part in (0, 1)
        )
        self._low_end = column([kind.low if kind.low in kind.spikes else -math.inf for kind in kinds])
        self._high_end = column([kind.high if kind.high in kind.spikes else math.inf for kind in kinds])
        self._usual = column([kind.usual for kind in kinds])
        self._by_flag = column([float(kind.by_flag) for kind in kinds]) > 0
        pairs = list(zip(kinds, starts, strict=True))
        self._inner = [
            row_index([start + min(number + 1, len(kind.inner)) for kind, start in pairs], device)
            for number in range(most)
        ]
        inner = [
            (place, start + 1 + number, spike)
            for place, (kind, start) in enumerate(pairs)
            for number, spike in enumerate(kind.inner)
        ]
        places, columns, spikes = zip(*inner, strict=True) if inner else ((), (), ())
        self._of_inner, self._inner_columns = row_index(places, device), row_index(columns, device)
        self._inner_spikes = column(spikes)
        self._tied = _Tied.of(kinds, starts, fields, most, device)
        # In the order of the spikes: one beyond the range comes before one at the lower end.
        taken = [(place, _slot(kind, spike, most)) for place, kind in enumerate(kinds) for spike in kind.spikes]
        self._flagged = tuple(torch.tensor(each, device=device) for each in zip(*taken, strict=True))

    def decoded(self, matrix: Tensor) -> Tensor:
        """Decode columns (D, N) of the matrix to numbers (C, N)."""
        value = matrix[self._rows]
        # A number in the gap that is not decoded to the spike is reflected into the range.
        low, high, margin = self._low_end, self._high_end, self._margin
        number = torch.where(value <= low, torch.maximum(2 * low - value, low + margin), value)
        number = torch.where(number >= high, torch.minimum(2 * high - number, high - margin), number)
        number = number.clamp(self._low, self._high)
        # If several flags are above their cuts, the spike with the largest difference is chosen.
        # But a spike that tied columns share is chosen whenever its flag is above its cut.
        highest = torch.zeros_like(number)
        for slot, (at, cut, flag) in enumerate(zip(self._at, self._cuts, self._each_flag(matrix, value), strict=True)):
            above = flag - cut
            if self._tied is not None:
                above += _FIRST * (self._tied.slots == slot) * (above > 0)
            number = torch.where(above > highest, at, number)
            highest = torch.maximum(highest, above)
        return number

    def moved(self, numbers: Tensor, matrix: Tensor) -> Tensor:
        """Return the encoded numbers: those at a spiked end of the range are moved outwards. (C, N)

        Also writes the columns of the spikes inside the range into `matrix` (D, N).
        """
        matrix[self._inner_columns] = (numbers[self._of_inner] == self._inner_spikes).double()
        outwards = (numbers == self._high_end).double() - (numbers == self._low_end).double()
        is_beyond = (numbers < self._low) | (numbers > self._high)
        return torch.where(is_beyond, self._usual, numbers + self._gap * outwards)

    def flags(self, matrix: Tensor) -> Tensor:
        """Return the flags of the spikes, column by column, and in increasing order in each. (F, N)"""
        place, slot = self._flagged
        return torch.stack(list(self._each_flag(matrix, matrix[self._rows])), dim=1)[place, slot]

    def _each_flag(self, matrix: Tensor, value: Tensor) -> Iterator[Tensor]:
        """Yield the flags of each slot. (C, N)"""
        shared = self._tied.flags(matrix, value) if self._tied is not None else value
        for slot, at in enumerate(self._at):
            if slot == 0:
                flag = (self._low - value) / self._gap
            elif slot == len(self._at) - 1:
                flag = (value - self._high) / self._gap
            else:
                mark = matrix[self._inner[slot - 1]]
                flag = torch.where(
                    (at < self._low) | (at > self._high) | self._by_flag,
                    mark,
                    _nearest_first(mark, (value - at).abs() / (4 * self._gap)),
                )
            if self._tied is not None:
                flag = torch.where(self._tied.slots == slot, shared, flag)
            yield flag


class _Tied:
    """Computes the flag of a spike that tied columns have in the same rows: the mean of their flags."""

    def __init__(
        self, kinds: Sequence[Spiked], starts: Sequence[int], groups: Sequence[Any], inner: int, device: torch.device
    ) -> None:
        """`groups` names the group of each column, or is None. `inner` is the number of slots inside the range."""
        tied = [place for place, group in enumerate(groups) if group is not None]
        slots, at, columns, sides, marks = [-1] * len(kinds), [], [], [], []
        for place in tied:
            kind = kinds[place]
            spike: Any = kind.shared
            slots[place] = _slot(kind, spike, inner)
            at.append(spike)
            sides.append(-1.0 if spike == kind.low else float(spike == kind.high))
            columns.append(starts[place] if sides[-1] else starts[place] + slots[place])
            marks.append(kind.by_flag or not kind.low <= spike <= kind.high)

        def column(values: Sequence[Any]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        def mean(names: Sequence[Any]) -> Tensor:
            """Return the matrix (T, T) that takes the mean over columns of the same name."""
            same = torch.tensor([[float(one == other) for other in names] for one in names])
            return (same / same.sum(1, keepdim=True)).to(device, torch.float64)

        self.slots = column(slots)
        """The slot of the shared spike in each column (C, 1), or -1."""
        self._places, self._columns = torch.tensor(tied, device=device), row_index(columns, device)
        self._sides, self._is_mark = column(sides).double(), column(marks)
        self._at, self._gap = column(at).double(), column([kinds[place].gap for place in tied]).double()
        self._mean = mean([groups[place] for place in tied])
        self._inner_mean = mean([place if side else groups[place] for place, side in zip(tied, sides, strict=True)])

    @classmethod
    def of(
        cls,
        kinds: Sequence[Spiked],
        starts: Sequence[int],
        fields: Sequence[str | None],
        inner: int,
        device: torch.device,
    ) -> _Tied | None:
        """Return None if no column is tied to another one."""
        groups = [None if kind.tied is None else (field, kind.tied) for kind, field in zip(kinds, fields, strict=True)]
        groups = [None if groups.count(group) == 1 else group for group in groups]
        return cls(kinds, starts, groups, inner, device) if any(groups) else None

    def flags(self, matrix: Tensor, value: Tensor) -> Tensor:
        """Return the flag of each column's shared spike, for columns (D, N) of the matrix and their numbers `value`
        (C, N). Columns that are not tied have 0. (C, N)"""
        away = value[self._places] - self._at
        mark, far = (
            self._inner_mean @ each.clamp(*_SURE) for each in (matrix[self._columns], away.abs() / (4 * self._gap))
        )
        inside = torch.where(self._is_mark, mark, _nearest_first(mark, far))
        flag = torch.where(self._sides == 0, inside, self._sides * away / self._gap)
        shared = torch.zeros_like(value)
        shared[self._places] = self._mean @ flag.clamp(*_SURE)
        return shared


def _nearest_first(mark: Tensor, far: Tensor) -> Tensor:
    """Return the flag of a spike that has a column of its own, the `mark`. `far` is the distance of the number from the
    spike, in four gaps.

    A threshold other than 0.5 changes which rows get the spike: the rows nearest to it come first.
    """
    return torch.where(mark > 0.5, 0.5 + 0.5 / (1.0 + far), 0.5 - far)


def _slots(kind: Spiked, inner: int) -> list[tuple[float, float]]:
    """Return for each slot the spike and its cut. `inner` is the number of inner slots.

    A slot without a spike has an infinite cut, which no flag exceeds.
    """
    slots = [(0.0, math.inf)] * (inner + 2)
    for spike, cut in zip(kind.spikes, kind.cuts, strict=True):
        slots[_slot(kind, spike, inner)] = spike, cut
    return slots


def _slot(kind: Spiked, spike: float, inner: int) -> int:
    """Return the number of the slot of a spike. `inner` is the number of inner slots."""
    if spike == kind.low:
        return 0
    return inner + 1 if spike == kind.high else 1 + kind.inner.index(spike)


def _by_columns(matrix: Matrix) -> Tensor:
    """Return a matrix (N, D) as a tensor stored column by column. (D, N)"""
    return torch.from_numpy(np.ascontiguousarray(matrix.T, np.float64))
