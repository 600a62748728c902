"""Standardise numbers separately in each category of a column.

Examples: a set point depends on the hour, a goal on the task, the size of price changes on the market regime. The means
of a number in different categories may be far apart, or its stds may differ. A network that is fitted for only a minute
blurs the categories into each other. So the mean of the number in the category of the row is subtracted, and the
difference is divided by the std in that category.

Numbers of an observation may depend on categories of the observation. Residuals of outcomes (residuals.py) may depend
on categories of observation and action, or on two of them together: a linear regression knows only the sum of what each
category does alone.

NOTE[paper]: the reference uses the same mean and std in all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.kinds import Bounded, Categorical, Codebook, Continuous, OneHot
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

Matrix = NDArray[np.float64]
Codes = Sequence[Sequence[int]]

FEWEST_ROWS = 50
"""Minimum number of rows with a value of a category. Rows with a rarer value are not standardised separately."""
WORTH = 0.4
"""Minimum gain of a category in mean log-likelihood, in nats per row, in rows that it was not fitted on. A lower limit
is worse: in LunarLander, where an engine adds some noise, velocities then match positions less well."""
_MOST_ROWS = 1 << 16  # maximum number of rows that groups are fitted on
_MOST_PAIRS, _MOST_TOGETHER = 16, 1024  # maximum number of pairs of categories, and of values that a pair has
_LEAST_STD = 1e-3  # smallest std in a value of a category, relative to the std in all rows


@dataclass(frozen=True)
class Group:
    """Mean and std of a column of the matrix in each value of a category, or of two categories together."""

    column: int
    codes: tuple[tuple[int, ...], ...]
    """The one-hot columns of each of the categories."""
    mean: tuple[float, ...]
    """Mean of the column in each value. In all rows the column has mean 0 and std 1."""
    std: tuple[float, ...]
    """Std of the column in each value."""

    @classmethod
    def fit(cls, values: Matrix, category: NDArray[np.intp], column: int, codes: Codes) -> Group:
        """Fit mean and std of a column with these `values` (N,), for rows in these categories (N,)."""
        size = math.prod(map(len, codes))
        count = np.bincount(category, minlength=size)
        known = np.maximum(count, 1)
        mean = np.bincount(category, values, size) / known
        variance = np.bincount(category, np.square(values - mean[category]), size) / known
        few = count < FEWEST_ROWS
        mean[few], variance[few] = 0.0, 1.0
        std = np.sqrt(variance).clip(_LEAST_STD)
        return cls(column, tuple(map(tuple, codes)), tuple(mean.tolist()), tuple(std.tolist()))

    def nats(self, values: Matrix, category: NDArray[np.intp]) -> float:
        """Return the gain in mean log-likelihood of `values` (N,), compared with a standard normal distribution."""
        mean, std = np.array(self.mean)[category], np.array(self.std)[category]
        return float((np.square(values) / 2 - np.square((values - mean) / std) / 2 - np.log(std)).mean())

    def category(self, rows: Matrix) -> NDArray[np.intp]:
        """Return the number of the value that each row of `rows` (N, D) has. (N,)"""
        return category_of(rows, self.codes)


def category_of(rows: Matrix, codes: Codes) -> NDArray[np.intp]:
    """Return the number of the value, or of the pair of values, that each row of `rows` (N, D) has. (N,)"""
    found = np.zeros(len(rows), np.intp)
    for code in codes:
        found = found * len(code) + rows[:, list(code)].argmax(1)
    return found


@dataclass(frozen=True)
class Groups:
    """Groups of several columns, all of std 1. None of these columns is a one-hot column of a category."""

    parts: tuple[Group, ...]

    @property
    def columns(self) -> list[int]:
        """The columns that are standardised."""
        return [part.column for part in self.parts]

    def take_out(self, rows: Matrix) -> None:
        """Standardise the columns of `rows` (N, D) in the category of each row, in place."""
        for part in self.parts:
            category = part.category(rows)
            rows[:, part.column] -= np.array(part.mean)[category]
            rows[:, part.column] /= np.array(part.std)[category]

    def log_scales(self, rows: Matrix) -> Matrix:
        """Return for each row of `rows` (N, D) the sum of the logarithms of the stds that it is divided by. (N,)"""
        return sum((np.log(part.std)[part.category(rows)] for part in self.parts), np.zeros(len(rows)))

    def moved(self, places: Mapping[int, int]) -> Groups:
        """Return the same groups with each column number replaced by `places[column]`."""
        return Groups(
            tuple(replace(part, column=places[part.column], codes=_at(places, part.codes)) for part in self.parts)
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(part) for part in self.parts]

    @classmethod
    def from_json(cls, entry: Any, width: int) -> Groups:
        """Read groups from JSON, for a matrix of `width` columns."""
        found = cls(checked(entry, tuple[Group, ...], "scaler.groups"))
        coded = {column for part in found.parts for code in part.codes for column in code}
        for part in found.parts:
            finite((*part.mean, *part.std), "scaler.groups")
            whole = math.prod(map(len, part.codes)) == len(part.mean) == len(part.std) > 0
            known = all(0 <= column < width for column in (part.column, *coded)) and part.column not in coded
            if not whole or not known or min(part.std) <= 0:
                raise FormatError(
                    f"scaler.groups: expected a mean and a std above 0 for each value of a category, and columns from "
                    f"0 to {width - 1}, got column {part.column} with {len(part.mean)} means and {len(part.std)} stds"
                )
        return found


def _at(places: Mapping[int, int], codes: Codes) -> tuple[tuple[int, ...], ...]:
    """Return the codes with each column number replaced by `places[column]`."""
    return tuple(tuple(places[column] for column in code) for code in codes)


class Regrouper:
    """Undoes `Groups.take_out`, for rows stored column by column (D, N), on a device."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        def tensor(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._parts = {
            part.column: ([tensor(code, torch.int64) for code in part.codes], tensor(part.mean), tensor(part.std))
            for part in groups.parts
        }

    def __call__(self, columns: Tensor) -> None:
        """Replace the standardised numbers in `columns` (D, N) by the original ones, in place."""
        for column in self._parts:
            mean, std = self._of(column, columns)
            columns[column] = columns[column] * std + mean

    def of(self, column: int, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return mean (N,) and std (N,) of a column in the category of each row of `rows` (N, D).

        Returns None if the column is in no group.
        """
        return self._of(column, rows.t()) if column in self._parts else None

    def _of(self, column: int, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (N,) and std (N,) of a column in the category of each row of `columns` (D, N)."""
        codes, mean, std = self._parts[column]
        category = torch.zeros(columns.shape[1], dtype=torch.int64, device=columns.device)
        for code in codes:
            category = category * len(code) + columns[code].argmax(0)
        return mean[category], std[category]


@dataclass(frozen=True)
class Grouping:
    """Specification of possible groups: which columns of the matrix may depend on which categories."""

    numbers: Sequence[int]
    """Columns of the observation that hold numbers."""
    codes: Sequence[Sequence[int]]
    """One-hot columns of each category of the observation."""
    actions: Sequence[Sequence[int]]
    """One-hot columns of each category of the action."""

    @classmethod
    def of(cls, layout: Layout) -> Grouping:
        """Return the possible groups of a layout. Columns of a sphere are left out, because they belong together."""
        together = {column for sphere in layout.spheres for column in sphere.columns}
        numbers, codes = list[int](), {"observation": list[range](), "action": list[range]()}
        for place in layout.places:
            kind = place.kind
            if place.field not in codes:
                continue
            if isinstance(kind, (Categorical, OneHot, Codebook)) and kind.coding == "onehot":
                codes[place.field].append(range(place.matrix.start, place.matrix.stop))
            elif place.field == "observation" and isinstance(kind, (Continuous, Bounded)):
                numbers += [place.matrix.start] if place.source.start not in together else []
        return cls(numbers, codes["observation"], codes["action"])

    def fit(self, rows: Matrix, place: Mapping[int, int], outcomes: Sequence[int]) -> Groups | None:
        """Fit groups on `rows`, of std 1, in which outcomes are residuals of a regression. None if no category helps.

        Column `column` of the matrix is column `place[column]` of `rows`. Each number gets the category that increases
        its log-likelihood most, or two categories if they are better by far. One half of the rows judges fits on the
        other half.
        """
        rows = rows[:: -(-len(rows) // _MOST_ROWS)]
        found: dict[int, tuple[float, Group]] = {}
        for codes, only_outcomes in self._tried():
            category = category_of(rows, _at(place, codes))
            for number in outcomes if only_outcomes else (*self.numbers, *outcomes):
                values, best = rows[:, place[number]], found[number][0] if number in found else 0.0
                nats = Group.fit(values[::2], category[::2], number, codes).nats(values[1::2], category[1::2])
                if nats > max(WORTH, best) and (len(codes) == 1 or nats > best + WORTH):
                    found[number] = nats, Group.fit(values, category, number, codes)
        return Groups(tuple(part for _, (_, part) in sorted(found.items()))) if found else None

    def _tried(self) -> Iterator[tuple[Codes, bool]]:
        """Yield single categories, and then some pairs, each with whether only outcomes may depend on it."""
        every = [*((code, False) for code in self.codes), *((code, True) for code in self.actions)]
        yield from (((code,), of_action) for code, of_action in every)
        pairs = [
            ((one, other), of_action or other_of_action)
            for (one, of_action), (other, other_of_action) in combinations(every, 2)
            if len(one) * len(other) <= _MOST_TOGETHER
        ]
        yield from pairs[:_MOST_PAIRS]
