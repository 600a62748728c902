"""Find columns that form a vector of constant length: sine and cosine of an angle, a quaternion, a direction.

The sum of their squares is the same in all rows. A network generates each column with an independent error, so the
generated length is slightly wrong. Generated vectors are rescaled to the right length and keep their direction.

Episodes may begin with another length. For example, Gymnasium's Ant and Humanoid begin with noise in their quaternion,
and the simulator normalises it in the first step. So the length may also be the same in all next observations alone.
Then it must be the same in most of the observations.

Columns of many levels may occur in few combinations: cosine and sine of a clock of 288 steps a day, or the features of
one of 300 users, which no step changes, and who return. Then generated numbers are replaced by the nearest combination.
A goal that is drawn for each episode does not return, and other goals are as likely.

NOTE[paper]: the reference does not rescale such columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from synther.data.inference import CHUNK, REPEATS, Steps
from synther.data.kind import Kind, Matrix, first_columns
from synther.data.numbers import Logarithmic, Real, Wrapped
from synther.data.quantiles import row_index
from synther.data.transitions import RowSource
from synther.data.values import Levels
from synther.errors import FormatError
from synther.schema import checked

_TOLERANCE = 1e-3  # relative deviation of the sum of squares that is allowed in every row; float16 has three digits
_MOST_STARTS = 0.2  # maximum share of observations with another length, if next observations have none
_FIRST_LOOK = 32  # number of rows that are looked at first, and rule out nearly all candidates
_FAR = 64  # two columns of a pair are less than this many columns of real numbers apart
_LONGEST = 4  # maximum number of columns of a vector: a quaternion
_ROUNDED = 0.02  # relative deviation that is allowed if the columns are rounded
_FEWEST_LEVELS = 33  # columns of fewer values stay levels, because the next ones are drawn from tables
_MOST_POINTS = 1 << 12  # maximum number of different combinations
_TOGETHER = 5  # combinations are at most this many times as many as the levels of a column
_RETURNS = 1.5  # minimum number of stretches of rows with the same combination, on average
_BLOCK = 1 << 22  # number of distances that are computed at a time
_MOVES = 0.01  # minimum std of each column, in radii, because any nearly constant column could be added to a vector


@dataclass(frozen=True)
class Sphere:
    """Columns of an observation that form a vector of constant length."""

    columns: tuple[int, ...]
    radius: float
    """The length of the vector, or the root mean square of the lengths of its points."""
    points: tuple[tuple[float, ...], ...] = ()
    """The vectors that occur, if these are few. They may have any length."""

    @property
    def is_round(self) -> bool:
        """Whether the vector has a constant length."""
        return not self.points or bool(_is_constant(np.square(np.array(self.points) / self.radius).sum(1), _ROUNDED))

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
        if any(len(point) != len(found.columns) for point in found.points):
            raise FormatError("layout.spheres: expected points with a number for each column")
        return found


def find_spheres(kinds: Sequence[Kind], values: Matrix, steps: Steps | None, rows: RowSource) -> tuple[Sphere, ...]:
    """Find the spheres among the columns of an observation. No column is in two spheres.

    `kinds` are the kinds of the columns, and `values` (N, W) is a sample of observations and next observations. `steps`
    are a sample of `rows`, or None if next observations are not modelled.
    """
    found = _spheres(kinds, values)
    if steps is not None:
        for sphere in _spheres(kinds, steps.after):
            is_free = not any(set(sphere.columns) & set(one.columns) for one in found)
            if is_free and sphere.differs(steps.before).mean() <= _MOST_STARTS:
                found.append(sphere)
    return tuple(sorted([*found, *_of_points(kinds, values, steps, rows)], key=lambda sphere: sphere.columns))


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


def _of_points(kinds: Sequence[Kind], values: Matrix, steps: Steps | None, rows: RowSource) -> list[Sphere]:
    """Find neighbouring columns of many levels that occur in few combinations in these rows (N, W).

    They are on a circle, or stay as they are in all `steps` and return in other episodes. Columns that move may often
    stay, or move in steps of their own.
    """
    levels = [kind.class_count if isinstance(kind, Levels) and not kind.circle else 0 for kind in kinds]
    blocks, codes, most = [list[int]()], np.zeros(len(values), np.int64), 0
    for column, count in zip(first_columns(kinds), levels, strict=True):
        if count < _FEWEST_LEVELS:
            blocks.append([])
            continue
        own = np.unique(values[:, column], return_inverse=True)[1]
        joined = np.unique(codes * (own.max() + 1) + own, return_inverse=True)[1]
        most = max(most, count) if blocks[-1] else count
        few = joined.max() < min(_TOGETHER * most, _MOST_POINTS, len(values) // REPEATS)
        if blocks[-1] and few:
            blocks[-1].append(column)
            codes = joined
        else:
            blocks.append([column])
            codes, most = own, count
    found = [_of_block(block, values) for block in blocks if len(block) > 1]
    moves = np.zeros(values.shape[1], bool) if steps is None else (steps.before != steps.after).any(0)

    def returns(one: Sphere) -> bool:
        sides = (chunk.observation.reshape(len(chunk), -1)[:, one.columns] for chunk in rows.chunks(CHUNK))
        stretches = sum(1 + np.count_nonzero((side[1:] != side[:-1]).any(1)) for side in sides)
        return bool(not moves[list(one.columns)].any() and stretches >= _RETURNS * len(one.points))

    return [one for one in found if (len(one.columns) == 2 and one.is_round) or returns(one)]


def _of_block(columns: Sequence[int], values: Matrix) -> Sphere:
    """Return the vectors of these columns that occur in rows (N, W)."""
    points = np.unique(values[:, columns], axis=0)
    radius = np.linalg.norm(points / np.abs(points).max()) * np.abs(points).max() / np.sqrt(len(points))
    return Sphere(tuple(columns), float(radius), tuple(map(tuple, points.tolist())))


def _candidates(squares: Matrix) -> Iterator[list[int]]:
    """Yield columns with a constant sum of `squares` (N, C) in these rows.

    Pairs, which may lie apart, come first. Then come runs of three or four neighbouring columns.
    """
    shapes = [*((0, distance) for distance in range(1, _FAR)), *(tuple(range(size)) for size in range(3, _LONGEST + 1))]
    for offsets in shapes:
        starts = squares.shape[1] - offsets[-1]
        if starts > 0 and len(squares):
            total = np.sum([squares[:, offset : offset + starts] for offset in offsets], axis=0)
            for start in np.flatnonzero(_is_constant(total)).tolist():
                yield [start + offset for offset in offsets]


def _is_constant(totals: Matrix, tolerance: float = _TOLERANCE) -> Any:
    """Return whether each column of `totals` (N, ...) has the same number above 0 in all rows, within the tolerance."""
    mean = totals.mean(0)
    with np.errstate(invalid="ignore"):
        return (mean > 0) & np.isfinite(mean) & (np.abs(totals - mean).max(0) <= tolerance * mean)


class Projection:
    """Rescales the vectors of a field to their constant length, or moves them to the nearest point, on a device."""

    def __init__(self, spheres: Sequence[Sphere], device: torch.device) -> None:
        self._spheres = [(row_index(one.columns, device), one.radius) for one in spheres if not one.points]
        self._points = [(row_index(one.columns, device), _Points(one, device)) for one in spheres if one.points]

    def put(self, field: Tensor) -> None:
        """Rescale or move the vectors in `field` (N, W), in place. Vectors of zeros have no direction and are not
        rescaled."""
        for columns, radius in self._spheres:
            values = field[:, columns].double()
            length = values.square().sum(1, keepdim=True).sqrt()
            field[:, columns] = (values * torch.where(length > 0, radius / length, 1.0)).to(field.dtype)
        for columns, points in self._points:
            for part in points.parts(len(field)):
                field[part, columns] = points.nearest(field[part, columns].double()).to(field.dtype)


class _Points:
    """The points of a sphere, on a device. On a circle or sphere, directions are compared, else numbers in stds."""

    def __init__(self, sphere: Sphere, device: torch.device) -> None:
        self._points = torch.tensor(sphere.points, dtype=torch.float64, device=device)
        self._is_round = sphere.is_round
        largest = self._points.abs().amax(0)  # divided by first, because squares of huge numbers overflow
        self._unit = largest.amax() if self._is_round else largest * (self._points / largest).std(0)
        self._compared = self._in_units(self._points)

    def parts(self, count: int) -> Iterator[slice]:
        """Yield parts of so many rows that their distances to all points are a few megabytes."""
        step = max(_BLOCK // len(self._points), 1)
        return (slice(start, start + step) for start in range(0, count, step))

    def nearest(self, values: Tensor) -> Tensor:
        """Return the point that is nearest to each row of `values` (N, C). (N, C)"""
        found: Tensor = self._points[torch.cdist(self._in_units(values), self._compared).argmin(1)]
        return found

    def _in_units(self, values: Tensor) -> Tensor:
        return functional.normalize(values / self._unit) if self._is_round else values / self._unit
