"""Spaces: the values that an observation or action may have.

A space is a tuple of parts (Box, Binary, Discrete, OneHot), one after the other along the columns of the array. It is
plain data, so that files and models can store it as JSON and can be read without Gymnasium.
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
    """Real columns with bounds. A missing bound is infinite."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # lists and arrays are accepted too
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if len(self.low) != len(self.high) or not self.low:
            raise DataError(
                f"Box: expected as many low as high bounds, and at least one, got {len(self.low)} and {len(self.high)}"
            )
        for column, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low <= high:
                raise DataError(f"Box: expected low <= high, got {low} and {high} in column {column}")

    @property
    def width(self) -> int:
        return len(self.low)

    @classmethod
    def uniform(cls, low: float, high: float, width: int) -> Box:
        """Return a Box with the same bounds for all `width` columns."""
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
    """One column of categories: integers `start`, ..., `start + size - 1` without an order."""

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
    """`size` columns of 0 and 1, with exactly one 1 in each row."""

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
    """Return the number of columns of a space."""
    return sum(part.width for part in space)


def limits(space: Space | None, columns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and the largest value of each column, (columns,) each. They are infinite without a space."""
    low, high, start = np.full(columns, -np.inf), np.full(columns, np.inf), 0
    for part in space or ():
        ends: Any = 0, 1
        if isinstance(part, Box):
            ends = part.low, part.high
        elif isinstance(part, Discrete):
            ends = part.start, part.start + part.size - 1
        place = slice(start, start + part.width)
        low[place], high[place] = ends
        start += part.width
    return low, high


def number_to_json(value: Any) -> Any:
    """Return infinities as text, because strict JSON cannot represent them, and other values unchanged."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def number_from_json(value: Any) -> Any:
    """Return the infinity that "inf" or "-inf" stands for, and other values unchanged."""
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
    """Raise an error if `space` is not a tuple of parts, for example a single part or a Gymnasium space. `name` is for
    the error text."""
    if space is not None and not (isinstance(space, tuple) and all(isinstance(part, Part) for part in space)):
        raise DataError(
            f"{name} is {space!r}: expected a tuple of parts such as (Box.uniform(-1, 1, 6),); "
            f"{name}() of synther.data.gym_spaces converts a Gymnasium space"
        )


def check(space: Space, values: NDArray[Any], name: str) -> None:
    """Raise an error if `values` (N, W) are outside `space`. It names the first row, column and value, and the allowed
    values.

    The tolerance at the bounds of a Box is a millionth of their distance, because float32 actions may be off from
    float64 bounds by that much.
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
