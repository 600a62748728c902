"""Find columns that form a vector of constant length: sine and cosine of an angle, a quaternion, a direction.

The sum of their squares is the same in all rows. A network generates each column with an independent error, so the
generated length is slightly wrong. Generated vectors are rescaled to the right length and keep their direction.

Episodes may begin with another length. For example, Gymnasium's Ant and Humanoid begin with noise in their quaternion,
and the simulator normalises it in the first step. So the length may also be the same in all next observations alone.
Then it must be the same in most of the observations.

If cosine and sine are rounded, or come from a clock of 288 steps a day, only some pairs of them occur. Then a generated
pair is replaced by the one in the nearest direction.

NOTE[paper]: the reference does not rescale such columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.kind import Kind, Matrix, first_columns
from synther.data.numbers import Logarithmic, Real, Wrapped
from synther.data.quantiles import row_index
from synther.data.values import Levels
from synther.errors import FormatError
from synther.schema import checked

if TYPE_CHECKING:
    from synther.data.inference import Steps

_TOLERANCE = 1e-3  # relative deviation of the sum of squares that is allowed in every row; float16 has three digits
_MOST_STARTS = 0.2  # maximum share of observations with another length, if next observations have none
_FIRST_LOOK = 32  # number of rows that are looked at first, and rule out nearly all candidates
_FAR = 64  # two columns of a pair are less than this many columns of real numbers apart
_LONGEST = 4  # maximum number of columns of a vector: a quaternion
_ROUNDED = 0.02  # relative deviation of the sum of squares that is allowed if both columns are rounded
_FEWEST_LEVELS = 33  # columns of fewer values stay levels, because the next ones are drawn from tables
_MOST_POINTS = 1 << 14  # maximum number of different pairs
_SAME = 1e-6  # angles closer than this, in radians, differ only by rounding
_MOVES = 0.01  # minimum std of each column, in radii, because any nearly constant column could be added to a vector


@dataclass(frozen=True)
class Sphere:
    """Columns of an observation that form a vector of constant length."""

    columns: tuple[int, ...]
    radius: float
    """The length of the vector."""
    points: tuple[tuple[float, float], ...] = ()
    """The pairs that occur, if only some do, in the order of their angles."""

    def differs(self, values: Matrix) -> NDArray[np.bool_]:
        """Return which rows (N, W) have another length. (N,)"""
        squares, wanted = np.square(values[:, self.columns]).sum(1), self.radius**2
        return np.asarray(np.abs(squares - wanted) > 2 * _TOLERANCE * wanted)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "points" or value}

    @classmethod
    def from_json(cls, entry: Any, width: int) -> Sphere:
        """Read a sphere from JSON, for observations of `width` columns."""
        found: Sphere = checked(entry, cls, "layout.spheres")
        known = len(found.columns) > 1 and all(0 <= column < width for column in found.columns)
        if not known or not 0 < found.radius < np.inf:
            raise FormatError(
                f"layout.spheres: expected at least two of {width} columns and a radius above 0, "
                f"got columns {found.columns} and radius {found.radius}"
            )
        angles = _angles(np.array(found.points)) if found.points else np.zeros(0)
        if found.points and (len(found.columns) != 2 or not (np.diff(angles) > 0).all()):
            raise FormatError("layout.spheres: expected points in the order of their angles, of two columns")
        return found


def find_spheres(kinds: Sequence[Kind], values: Matrix, steps: Steps | None) -> tuple[Sphere, ...]:
    """Find the spheres among the columns of an observation. No column is in two spheres.

    `kinds` are the kinds of the columns, and `values` (N, W) is a sample of observations and next observations. `steps`
    are a sample of rows, or None if next observations are not modelled.
    """
    found = _spheres(kinds, values)
    if steps is not None:
        for sphere in _spheres(kinds, steps.after):
            is_free = not any(set(sphere.columns) & set(one.columns) for one in found)
            if is_free and sphere.differs(steps.before).mean() <= _MOST_STARTS:
                found.append(sphere)
    return tuple(sorted([*found, *_circles_of_points(kinds, values)], key=lambda sphere: sphere.columns))


def _spheres(kinds: Sequence[Kind], values: Matrix) -> list[Sphere]:
    """Find the vectors of constant length in these rows (N, W)."""
    is_real = [isinstance(kind, Real) and not isinstance(kind, (Logarithmic, Wrapped)) for kind in kinds]
    columns = np.array(first_columns(kinds))[is_real]
    found: list[Sphere] = []
    with np.errstate(over="ignore"):
        squares = np.square(values[:, columns])
    for places in _candidates(squares[:_FIRST_LOOK]):
        vector = columns[places].tolist()
        apart = len(vector) > 2 and vector[-1] - vector[0] >= len(vector)
        if apart or any(not set(vector).isdisjoint(sphere.columns) for sphere in found):
            continue
        total = squares[:, places].sum(1)
        if not _is_constant(total) or values[:, vector].std(0).min() < _MOVES * np.sqrt(total.mean()):
            continue
        mean = float(total.mean())
        whole = round(mean)  # exactly 1, for example, although the sum of rounded numbers is 0.9998
        found.append(Sphere(tuple(vector), float(np.sqrt(whole if abs(mean - whole) < _TOLERANCE * mean else mean))))
    return found


def _circles_of_points(kinds: Sequence[Kind], values: Matrix) -> list[Sphere]:
    """Find the pairs of columns of many levels that are on a circle in these rows (N, W)."""
    is_fine = [isinstance(kind, Levels) and kind.class_count >= _FEWEST_LEVELS and not kind.circle for kind in kinds]
    columns = np.array(first_columns(kinds))[is_fine]
    found: list[Sphere] = []
    squares = np.square(values[:, columns])
    for places in _candidates(squares[:_FIRST_LOOK], longest=2, tolerance=_ROUNDED):
        pair, total = columns[places].tolist(), squares[:, places].sum(1)
        is_free = all(set(pair).isdisjoint(one.columns) for one in found)
        if not is_free or not _is_constant(total, _ROUNDED):
            continue
        points = np.unique(values[:, pair], axis=0) + 0.0  # no -0.0, which is at the other end of the circle
        angles = _angles(points)
        order = np.argsort(angles, kind="stable")
        points = points[order[np.diff(angles[order], prepend=-np.inf) > _SAME]]
        if len(points) <= _MOST_POINTS:
            found.append(Sphere((pair[0], pair[1]), float(np.sqrt(total.mean())), tuple(map(tuple, points.tolist()))))
    return found


def _angles(points: Matrix) -> Matrix:
    """Return the angle of each point (N, 2), from -pi to pi. (N,)"""
    return np.asarray(np.arctan2(points[:, 1], points[:, 0]))


def _candidates(squares: Matrix, longest: int = _LONGEST, tolerance: float = _TOLERANCE) -> Iterator[list[int]]:
    """Yield columns with a constant sum of `squares` (N, C) in these rows.

    Pairs, which may lie apart, come first. Then come runs of three or four neighbouring columns.
    """
    shapes = [*((0, distance) for distance in range(1, _FAR)), *(tuple(range(size)) for size in range(3, longest + 1))]
    for offsets in shapes:
        starts = squares.shape[1] - offsets[-1]
        if starts > 0 and len(squares):
            total = np.sum([squares[:, offset : offset + starts] for offset in offsets], axis=0)
            for start in np.flatnonzero(_is_constant(total, tolerance)).tolist():
                yield [start + offset for offset in offsets]


def _is_constant(totals: Matrix, tolerance: float = _TOLERANCE) -> Any:
    """Return whether each column of `totals` (N, ...) has the same number above 0 in all rows, within the tolerance."""
    mean = totals.mean(0)
    with np.errstate(invalid="ignore"):
        return (mean > 0) & np.isfinite(mean) & (np.abs(totals - mean).max(0) <= tolerance * mean)


class Projection:
    """Rescales the vectors of a field to their constant length, on a device."""

    def __init__(self, spheres: Sequence[Sphere], device: torch.device) -> None:
        self._spheres = [(row_index(one.columns, device), one.radius) for one in spheres if not one.points]
        self._circles = [(row_index(one.columns, device), *_nearest(one, device)) for one in spheres if one.points]

    def put(self, field: Tensor) -> None:
        """Rescale the vectors in `field` (N, W), in place. Vectors of zeros have no direction and are not changed."""
        for columns, radius in self._spheres:
            values = field[:, columns].double()
            length = values.square().sum(1, keepdim=True).sqrt()
            field[:, columns] = (values * torch.where(length > 0, radius / length, 1.0)).to(field.dtype)
        for columns, edges, points in self._circles:
            values = field[:, columns].double()
            place = torch.searchsorted(edges, torch.atan2(values[:, 1], values[:, 0]))
            field[:, columns] = points[place].to(field.dtype)


def _nearest(sphere: Sphere, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the angles halfway between neighbouring points (K + 1,), and the points (K + 2, 2). The first and the last
    point are the same as those at the other end, a turn away."""
    points = np.array(sphere.points)
    angles = _angles(points)
    turn = 2 * np.pi
    around = np.concatenate([[angles[-1] - turn], angles, [angles[0] + turn]])
    points = np.concatenate([points[-1:], points, points[:1]])
    return torch.from_numpy((around[1:] + around[:-1]) / 2).to(device), torch.from_numpy(points).to(device)
