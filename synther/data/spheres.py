"""Columns whose squares sum to the same number in all rows: sine and cosine of an angle, a quaternion, a direction.

A network makes each of them with an error of its own, so that they no longer fit each other. Rows come back with the
right length and the generated direction.

NOTE[paper]: the reference takes such columns as they are generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther.data.kind import Kind, Matrix, first_columns
from synther.data.numbers import Logarithmic, Real, Wrapped
from synther.data.quantiles import row_index
from synther.errors import FormatError
from synther.schema import checked

_TOLERANCE = 1e-3  # of the sum of squares, in every row; float16 has three digits
_FIRST_LOOK = 32  # rows that rule out nearly all candidates
_FAR = 64  # columns of real numbers within which both of a pair lie
_LONGEST = 4  # a quaternion
_MOVES = 0.01  # least std of a column of it, in radii: else a constant beside it would do


@dataclass(frozen=True)
class Sphere:
    """Columns of an observation, and the length that they have together."""

    columns: tuple[int, ...]
    radius: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, width: int) -> Sphere:
        found: Sphere = checked(entry, cls, "layout.spheres")
        known = len(found.columns) > 1 and all(0 <= column < width for column in found.columns)
        if not known or not 0 < found.radius < np.inf:
            raise FormatError("layout.spheres: expected columns of the observation, and a radius above 0")
        return found


def find_spheres(kinds: Sequence[Kind], values: Matrix) -> tuple[Sphere, ...]:
    """Of observations of these kinds, with a sample (N, W) of them. No column is in two."""
    is_real = [isinstance(kind, Real) and not isinstance(kind, (Logarithmic, Wrapped)) for kind in kinds]
    columns = np.array(first_columns(kinds))[is_real]
    found: list[Sphere] = []
    with np.errstate(over="ignore"):
        squares = np.square(values[:, columns])
    for places in _likely(squares[:_FIRST_LOOK]):
        own = columns[places].tolist()
        apart = len(own) > 2 and own[-1] - own[0] >= len(own)
        if apart or any(not set(own).isdisjoint(sphere.columns) for sphere in found):
            continue
        total = squares[:, places].sum(1)
        if not _is_constant(total) or values[:, own].std(0).min() < _MOVES * np.sqrt(total.mean()):
            continue
        mean = float(total.mean())
        whole = round(mean)  # 1 rather than what rounded numbers add up to
        found.append(Sphere(tuple(own), float(np.sqrt(whole if abs(mean - whole) < _TOLERANCE * mean else mean))))
    return tuple(sorted(found, key=lambda sphere: sphere.columns))


def _likely(squares: Matrix) -> Iterator[list[int]]:
    """Columns whose squares (N, C) sum to one number in these rows: pairs that may lie apart, then neighbours."""
    shapes = [*((0, distance) for distance in range(1, _FAR)), *(tuple(range(size)) for size in range(3, _LONGEST + 1))]
    for offsets in shapes:
        starts = squares.shape[1] - offsets[-1]
        if starts > 0 and len(squares):
            total = np.sum([squares[:, offset : offset + starts] for offset in offsets], axis=0)
            for start in np.flatnonzero(_is_constant(total)).tolist():
                yield [start + offset for offset in offsets]


def _is_constant(totals: Matrix) -> Any:
    """Whether a column is the same number above 0 in all rows."""
    mean = totals.mean(0)
    with np.errstate(invalid="ignore"):
        return (mean > 0) & np.isfinite(mean) & (np.abs(totals - mean).max(0) <= _TOLERANCE * mean)


class Projection:
    """Spheres of the columns of a field, on a device."""

    def __init__(self, spheres: Sequence[Sphere], device: torch.device) -> None:
        self._spheres = [(row_index(sphere.columns, device), sphere.radius) for sphere in spheres]

    def put(self, field: Tensor) -> None:
        """Bring the columns of the field (N, W) to their length. A row of zeros, which has no direction, stays."""
        for columns, radius in self._spheres:
            values = field[:, columns].double()
            length = values.square().sum(1, keepdim=True).sqrt()
            field[:, columns] = (values * torch.where(length > 0, radius / length, 1.0)).to(field.dtype)
