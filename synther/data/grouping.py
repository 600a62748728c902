"""Numbers that depend on a category: a set point on the hour, a goal on the task, how much prices move on the regime.

In different categories a number may be far apart, or vary far more in some than in others. A network that is fitted for
a minute blurs them into each other. So such a number is measured from its mean in the category of the row, in units of
its std there. Numbers of an observation follow categories of it; what a regression leaves of an outcome follows those
of observation and action, or two of them together, of which a line knows only what each does by itself.

NOTE[paper]: the reference measures all rows from the same mean.
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
"""Of a category below which its numbers are measured like all others."""
WORTH = 0.4
"""Nats for each row that the categories have to tell of a number, in rows they were not measured in. Less is not worth
it: in LunarLander, where an engine adds some noise, velocities then fit positions worse."""
_MOST_ROWS = 1 << 16
_MOST_PAIRS, _MOST_TOGETHER = 16, 1024  # of categories, and of values that both have together
_LEAST_STD = 1e-3  # of a number in a category, in its stds in all rows


@dataclass(frozen=True)
class Group:
    """A column of the matrix and a category, or two together, by the columns of their one-hot codes."""

    column: int
    codes: tuple[tuple[int, ...], ...]
    mean: tuple[float, ...]
    """In each category, of a column that has mean 0 and std 1 in all rows."""
    std: tuple[float, ...]

    @classmethod
    def fit(cls, values: Matrix, category: NDArray[np.intp], column: int, codes: Codes) -> Group:
        """Of rows with these values (N,) in these categories (N,)."""
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
        """How much more likely each of these rows is, on average, than if the number were normal in all of them."""
        mean, std = np.array(self.mean)[category], np.array(self.std)[category]
        return float((np.square(values) / 2 - np.square((values - mean) / std) / 2 - np.log(std)).mean())

    def category(self, rows: Matrix) -> NDArray[np.intp]:
        return category_of(rows, self.codes)


def category_of(rows: Matrix, codes: Codes) -> NDArray[np.intp]:
    """Which value of a category, or of two together, rows (N, D) have. (N,)"""
    found = np.zeros(len(rows), np.intp)
    for code in codes:
        found = found * len(code) + rows[:, list(code)].argmax(1)
    return found


@dataclass(frozen=True)
class Groups:
    """What is taken out of some columns, all of std 1. No code is among these columns."""

    parts: tuple[Group, ...]

    @property
    def columns(self) -> list[int]:
        return [part.column for part in self.parts]

    def take_out(self, rows: Matrix) -> None:
        """Measure the numbers of `rows` (N, D) from their mean in the category of the row."""
        for part in self.parts:
            category = part.category(rows)
            rows[:, part.column] -= np.array(part.mean)[category]
            rows[:, part.column] /= np.array(part.std)[category]

    def log_scales(self, rows: Matrix) -> Matrix:
        """The sum of the logarithms of what the numbers of rows (N, D) are divided by. (N,)"""
        return sum((np.log(part.std)[part.category(rows)] for part in self.parts), np.zeros(len(rows)))

    def moved(self, places: Mapping[int, int]) -> Groups:
        """The same where columns have these places."""
        return Groups(
            tuple(replace(part, column=places[part.column], codes=_at(places, part.codes)) for part in self.parts)
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(part) for part in self.parts]

    @classmethod
    def from_json(cls, entry: Any, width: int) -> Groups:
        """Of a matrix of this width."""
        found = cls(checked(entry, tuple[Group, ...], "scaler.groups"))
        coded = {column for part in found.parts for code in part.codes for column in code}
        for part in found.parts:
            finite((*part.mean, *part.std), "scaler.groups")
            whole = math.prod(map(len, part.codes)) == len(part.mean) == len(part.std) > 0
            known = all(0 <= column < width for column in (part.column, *coded)) and part.column not in coded
            if not whole or not known or min(part.std) <= 0:
                raise FormatError("scaler.groups: expected a mean and a std for each value of a category")
        return found


def _at(places: Mapping[int, int], codes: Codes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(places[column] for column in code) for code in codes)


class Regrouper:
    """The reverse, in rows that lie by columns, (D, N), on a device."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        def tensor(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._parts = {
            part.column: ([tensor(code, torch.int64) for code in part.codes], tensor(part.mean), tensor(part.std))
            for part in groups.parts
        }

    def __call__(self, columns: Tensor) -> None:
        for column in self._parts:
            mean, std = self._of(column, columns)
            columns[column] = columns[column] * std + mean

    def of(self, column: int, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and std of a column in the category of each row (N, D), each (N,). None if it is in no group."""
        return self._of(column, rows.t()) if column in self._parts else None

    def _of(self, column: int, columns: Tensor) -> tuple[Tensor, Tensor]:
        codes, mean, std = self._parts[column]
        category = torch.zeros(columns.shape[1], dtype=torch.int64, device=columns.device)
        for code in codes:
            category = category * len(code) + columns[code].argmax(0)
        return mean[category], std[category]


@dataclass(frozen=True)
class Grouping:
    """Which columns of the matrix may be measured by which others."""

    numbers: Sequence[int]
    """Of the observation."""
    codes: Sequence[Sequence[int]]
    """The columns of each category of the observation."""
    actions: Sequence[Sequence[int]]
    """Those of the action."""

    @classmethod
    def of(cls, layout: Layout) -> Grouping:
        """Plain numbers, and categories. Numbers that have one length together stay together."""
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
        """Learned from rows whose columns are at these places: of std 1, and what a regression leaves of the
        `outcomes`. Each number has the category that tells most about it, or the two that tell far more together. Half
        of the rows judge what the others tell.
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
        """Categories, and then some pairs of them; and whether they tell about outcomes only."""
        every = [*((code, False) for code in self.codes), *((code, True) for code in self.actions)]
        yield from (((code,), of_action) for code, of_action in every)
        pairs = [
            ((one, other), of_action or other_of_action)
            for (one, of_action), (other, other_of_action) in combinations(every, 2)
            if len(one) * len(other) <= _MOST_TOGETHER
        ]
        yield from pairs[:_MOST_PAIRS]
