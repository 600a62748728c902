"""Numbers that depend on a category: a set point on the hour, a goal on the task, how much prices move on the regime.

In different categories a number may be far apart, or vary far more in some than in others. A network that is fitted for
a minute blurs them into each other. So such a number is measured from its mean in the category of the row, in units of
its std there. Numbers of an observation follow categories of it; what a regression leaves of an outcome follows those
of observation and action.

NOTE[paper]: the reference measures all rows from the same mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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

FEWEST_ROWS = 50
"""Of a category below which its numbers are measured like all others."""
WORTH = 0.4
"""Nats for each row that the categories have to tell of a number, in rows they were not measured in. Less is not worth
it: in LunarLander, where an engine adds some noise, velocities then fit positions worse."""
_LEAST_STD = 1e-3  # of a number in a category, in its stds in all rows


@dataclass(frozen=True)
class Group:
    """A column of the matrix and the columns of a category's one-hot code."""

    column: int
    code: tuple[int, ...]
    mean: tuple[float, ...]
    """In each category, of a column that has mean 0 and std 1 in all rows."""
    std: tuple[float, ...]

    @classmethod
    def fit(cls, values: Matrix, category: NDArray[np.intp], column: int, code: Sequence[int]) -> Group:
        """Of rows with these values (N,) in these categories (N,)."""
        count = np.bincount(category, minlength=len(code))
        known = np.maximum(count, 1)
        mean = np.bincount(category, values, len(code)) / known
        variance = np.bincount(category, np.square(values - mean[category]), len(code)) / known
        few = count < FEWEST_ROWS
        mean[few], variance[few] = 0.0, 1.0
        std = np.sqrt(variance).clip(_LEAST_STD)
        return cls(column, tuple(code), tuple(mean.tolist()), tuple(std.tolist()))

    def nats(self, values: Matrix, category: NDArray[np.intp]) -> float:
        """How much more likely each of these rows is, on average, than if the number were normal in all of them."""
        mean, std = np.array(self.mean)[category], np.array(self.std)[category]
        return float((np.square(values) / 2 - np.square((values - mean) / std) / 2 - np.log(std)).mean())

    def category(self, rows: Matrix) -> NDArray[np.intp]:
        return np.asarray(rows[:, list(self.code)].argmax(1))


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
            tuple(
                replace(part, column=places[part.column], code=tuple(places[column] for column in part.code))
                for part in self.parts
            )
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(part) for part in self.parts]

    @classmethod
    def from_json(cls, entry: Any, width: int) -> Groups:
        """Of a matrix of this width."""
        found = cls(checked(entry, tuple[Group, ...], "scaler.groups"))
        codes = {column for part in found.parts for column in part.code}
        for part in found.parts:
            finite((*part.mean, *part.std), "scaler.groups")
            whole = len(part.code) == len(part.mean) == len(part.std) > 0
            known = all(0 <= column < width for column in (part.column, *part.code)) and part.column not in codes
            if not whole or not known or min(part.std) <= 0:
                raise FormatError("scaler.groups: expected a mean and a std for each column of a code")
        return found


class Regrouper:
    """The reverse, in rows that lie by columns, (D, N), on a device."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        def tensor(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._parts = [
            (part.column, tensor(part.code, torch.int64), tensor(part.mean), tensor(part.std)) for part in groups.parts
        ]

    def __call__(self, columns: Tensor) -> None:
        for column, code, mean, std in self._parts:
            category = columns[code].argmax(0)
            columns[column] = columns[column] * std[category] + mean[category]

    def of(self, column: int, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and std of a column in the category of each row (N, D), each (N,). None if it is in no group."""
        for own, code, mean, std in self._parts:
            if own == column:
                category = rows[:, code].argmax(1)
                return mean[category], std[category]
        return None


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
        `outcomes`. Each number has the category that tells most about it. Half of the rows judge what the others tell.
        """
        found: dict[int, tuple[float, Group]] = {}
        numbers = (*self.numbers, *outcomes)
        for code, told in [*((code, numbers) for code in self.codes), *((code, outcomes) for code in self.actions)]:
            category = rows[:, [place[column] for column in code]].argmax(1)
            for number in told:
                values = rows[:, place[number]]
                nats = Group.fit(values[::2], category[::2], number, code).nats(values[1::2], category[1::2])
                if nats > max(WORTH, found[number][0] if number in found else 0.0):
                    found[number] = nats, Group.fit(values, category, number, code)
        return Groups(tuple(part for _, (_, part) in sorted(found.items()))) if found else None
