"""What is known about the values of an observation or an action before any row is seen.

A space is a tuple of parts, one after the other along the columns of the array. It is plain data, so that a file or a
model can carry it as JSON and be read without Gymnasium.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.errors import DataError, FormatError
from synther.schema import checked


@dataclass(frozen=True)
class Box:
    """Real columns between bounds (infinite where there is none)."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # which may come as lists, or arrays
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if len(self.low) != len(self.high) or not self.low:
            raise DataError(f"Box: expected as many low as high bounds, got {len(self.low)} and {len(self.high)}")
        for column, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low <= high:
                raise DataError(f"Box: expected low <= high, got {low} and {high} in column {column}")

    @property
    def width(self) -> int:
        return len(self.low)

    @classmethod
    def uniform(cls, low: float, high: float, width: int) -> Box:
        return cls((float(low),) * width, (float(high),) * width)


@dataclass(frozen=True)
class Binary:
    """Columns of 0 and 1."""

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise DataError(f"Binary: expected at least one column, got width {self.width}")


@dataclass(frozen=True)
class Discrete:
    """One column of integers `start`, ..., `start + size - 1` without an order between them."""

    size: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"Discrete: expected at least one value, got size {self.size}")

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True)
class OneHot:
    """`size` columns of which exactly one is 1."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"OneHot: expected at least one value, got size {self.size}")

    @property
    def width(self) -> int:
        return self.size


Part = Box | Binary | Discrete | OneHot
Space = tuple[Part, ...]

_PARTS: dict[str, type[Part]] = {part.__name__.lower(): part for part in (Box, Binary, Discrete, OneHot)}


def width(space: Space) -> int:
    return sum(part.width for part in space)


def number_to_json(value: Any) -> Any:
    """Infinities as text, since strict JSON has no word for them; everything else as it is."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def number_from_json(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in ("inf", "-inf") else value


def _plain(value: Any) -> Any:
    return [number_to_json(float(bound)) for bound in value] if isinstance(value, tuple) else int(value)


def to_json(space: Space | None) -> list[dict[str, Any]] | None:
    if space is None:
        return None
    return [
        {"part": type(part).__name__.lower(), **{name: _plain(value) for name, value in asdict(part).items()}}
        for part in space
    ]


def from_json(parts: list[dict[str, Any]] | None) -> Space | None:
    if parts is None:
        return None
    return tuple(_part(entry) for entry in checked(parts, list[dict[str, Any]], "a space"))


def _part(entry: dict[str, Any]) -> Part:
    fields = {
        name: list(map(number_from_json, value)) if isinstance(value, list) else value for name, value in entry.items()
    }
    name = checked(fields.pop("part", None), str, "part of a space")
    if name not in _PARTS:
        raise FormatError(f"unknown part of a space {name!r}: expected {', '.join(_PARTS)}")
    part: Part = checked(fields, _PARTS[name], f"part {name!r} of a space")
    return part


def check_parts(space: Space | None, name: str) -> None:
    """Raise where a space is none of ours: a part alone, or one of Gymnasium's."""
    if space is not None and not (isinstance(space, tuple) and all(isinstance(part, Part) for part in space)):
        raise DataError(
            f"{name} is {space!r}: expected a tuple of parts such as (Box.uniform(-1, 1, 6),); "
            f"{name}() of synther.data.gym_spaces makes one of a Gymnasium space"
        )


def check(space: Space, values: NDArray[Any], name: str) -> None:
    """Raise where `values` (N, W) leave `space`, naming row, column, value and what was allowed.

    A millionth of a bound's span is forgiven: float32 actions of a float64 box are off by that much.
    """
    if values.shape[1] != width(space):
        raise DataError(f"{name}: the space has {width(space)} columns, the array {values.shape[1]}")
    start = 0
    for part in space:
        columns = values[:, start : start + part.width]
        if isinstance(part, Box):
            low, high = np.asarray(part.low), np.asarray(part.high)
            with np.errstate(over="ignore", invalid="ignore"):
                span = np.where(np.isfinite(high - low), high - low, 0.0)
            wrong = (columns < low - 1e-6 * span) | (columns > high + 1e-6 * span)
            allowed = "a value in [{low:g}, {high:g}]"
        elif isinstance(part, Discrete):
            low, high = np.asarray([part.start]), np.asarray([part.start + part.size - 1])
            wrong = (columns < low) | (columns > high) | (columns != np.round(columns))
            allowed = "an integer from {low:g} to {high:g}"
        else:
            low, high = np.zeros(part.width), np.ones(part.width)
            wrong = (columns != 0) & (columns != 1)
            if isinstance(part, OneHot):
                wrong |= (np.count_nonzero(columns, axis=1) != 1)[:, None]
            allowed = "0 or 1" if isinstance(part, Binary) else f"one 1 and otherwise 0 in {part.width} columns"
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            expected = allowed.format(low=low[column], high=high[column])
            raise DataError(
                f"{name}[{row}, {start + column}] is {columns[row, column]:g}, outside the space: expected {expected}. "
                f"{int(wrong.any(1).sum()):,} of {len(values):,} rows are outside; clip them or pass the right space"
            )
        start += part.width
