"""Columns that say the same as others: a goal that was reached is a position, shares sum to 1, a goal stays in place.

A network makes each of them with an error of its own, so that they contradict each other. And a regression on columns
that follow from each other cannot tell which of them an outcome follows from. So the matrix does without them, and rows
come back with what the others say.

Inside an observation, and likewise inside the next one, a column may be a sum of multiples of others. Or it has a few
values, one for each value of another column. A column of the next observation may be a copy of one of the observation
or of the action.

NOTE[paper]: the reference generates all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.categories import Codebook
from synther.data.kind import Array, Kind, by_column
from synther.data.lines import ROWS_PER_WEIGHT
from synther.data.numbers import Bounded, Continuous, Spiked
from synther.data.values import Binary, Constant, Derived, Levels
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout
    from synther.data.transitions import Transitions

Matrix = NDArray[np.float64]

FIELDS = ("observation", "action", "next_observation")
_HERE, _GIVEN, _THERE = FIELDS
EXACT = 1e-5
"""Stds of a column that it may be off in the rows that are looked at; ten times as many in all others."""
_MOST_ROWS, _MOST_COLUMNS = 1 << 12, 512
_AMPLIFIED = 3.0  # times the error of others that a column may get from them
_NOTHING = 1e-4  # stds of a column below which another one has no part in it
_DIGITS = 6  # of weights, if that does
_MOST_VALUES = 64  # of a column that others are looked up by
_ANY_FEW = 4  # values, which a network can learn by heart


class Parent(NamedTuple):
    field: str
    column: int
    weight: float


@dataclass(frozen=True)
class Identity:
    """A column as a sum of multiples of others, or as other names for the values of one."""

    field: str
    column: int
    parents: tuple[Parent, ...]
    level: float = 0.0
    values: tuple[tuple[float, float], ...] = ()
    """Of a column that has another name for each value of its only parent: these, in increasing order, with the names.
    Empty: it is a sum."""

    def put(self, fields: Mapping[str, Tensor]) -> None:
        """Write the column into fields (N, W)."""
        if self.values:
            ((field, column, _),) = self.parents
            given = fields[field][:, column].double()
            own = torch.full_like(given, self.values[0][1])
            for (before, _), (at, name) in pairwise(self.values):  # no tables: a GPU cannot take them from main memory
                own.masked_fill_(given > (before + at) / 2, name)
            fields[self.field][:, self.column] = own.to(fields[self.field].dtype)
            return
        if self.is_copy:
            ((field, column, _),) = self.parents
            fields[self.field][:, self.column] = fields[field][:, column].to(fields[self.field].dtype)
            return
        own = fields[self.field][:, self.column]
        total = own.double().fill_(self.level)
        for field, column, weight in self.parents:
            total += weight * fields[field][:, column].double()
        fields[self.field][:, self.column] = total.to(own.dtype)

    @property
    def is_copy(self) -> bool:
        return len(self.parents) == 1 and self.parents[0].weight == 1.0 and self.level == 0.0 and not self.values

    def text(self, name: Callable[[str, int], str]) -> str:
        """It in words; `name` is that of a field's column."""
        if self.values:
            return f"{name(self.field, self.column)} follows from {name(self.parents[0].field, self.parents[0].column)}"
        told = written_sum([(parent.weight, name(parent.field, parent.column)) for parent in self.parents], self.level)
        return f"{name(self.field, self.column)} = {told}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parents": [list(parent) for parent in self.parents]}

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Identity:
        """Of rows whose fields have these kinds."""
        told = {**checked(entry, dict[str, Any], "layout.identities")}
        parents = checked(told.pop("parents", None), list[tuple[str, int, float]], "layout.identities.parents")
        found: Identity = checked({**told, "parents": []}, cls, "layout.identities")
        found = replace(found, parents=tuple(Parent(*parent) for parent in parents))
        finite((found.level, *(parent.weight for parent in found.parents)), "layout.identities")
        widths = {field: sum(kind.source_width for kind in kinds[field]) for field in FIELDS}
        places = [(found.field, found.column), *((parent.field, parent.column) for parent in found.parents)]
        if not all(field in FIELDS and 0 <= column < widths[field] for field, column in places):
            raise FormatError("layout.identities: expected columns of observations and actions")
        if found.values:
            finite(tuple(number for pair in found.values for number in pair), "layout.identities")
            if len(found.parents) != 1 or (np.diff([at for at, _ in found.values]) <= 0).any():
                raise FormatError("layout.identities: expected increasing values of one column")
        return found


def written_sum(parts: Sequence[tuple[float, str]], level: float) -> str:
    """A sum of multiples as people write it: "1 - x + 0.5 y"."""
    every = [*([(level, "")] if level or not parts else []), *parts]
    texts = [f"{abs(weight):.6g}" if not name or abs(weight) != 1 else "" for weight, name in every]
    signs = ["-" if weight < 0 else "+" for weight, _ in every]
    joined = " ".join(
        f"{sign} {' '.join(filter(None, (text, name)))}"
        for sign, text, (_, name) in zip(signs, texts, every, strict=True)
    )
    return joined[2:] if joined.startswith("+ ") else f"-{joined[2:]}"


def with_identities(layout: Layout, rows: Transitions) -> Layout:
    """The same layout, without columns that follow from others."""
    some = rows[:: -(-len(rows) // _MOST_ROWS)]
    arrays = {field: values.reshape(len(some), -1).astype(np.float64) for field, values in _sides(some).items()}
    width = arrays[_HERE].shape[1]
    pairs = all(isinstance(kind, Constant) for kind in layout.next_observation)
    if pairs or width > _MOST_COLUMNS or len(some) < ROWS_PER_WEIGHT * width:
        return layout
    on_spheres = {column for sphere in layout.spheres for column in sphere.columns}
    free = {column for column, kind in by_column(layout.observation).items() if isinstance(kind, _NUMBERS)} - on_spheres
    states = np.concatenate([arrays[_HERE], arrays[_THERE]])
    special = {column for column, kind in by_column(layout.observation).items() if isinstance(kind, Spiked)}
    inside = _inside(states, free, special)
    same = [replace(one, field=_THERE, parents=_moved(one.parents)) for one in inside]
    known = {one.column for one in inside}
    still = {
        column for column, kind in by_column(layout.next_observation).items() if isinstance(kind, _NUMBERS)
    } - known
    found = _holding([*inside, *_copies(arrays, still), *same], rows)
    both = {one.column for one in found if one.field == _HERE} & {one.column for one in found if one.field == _THERE}
    lost = {one.column for one in inside} - both  # a rule has to hold on both sides
    found = [*_looked_up(layout, states, rows), *(one for one in found if one.column not in lost)]
    if not found:
        return layout
    kinds = {
        field: tuple(
            Derived() if (field, column) in {(one.field, one.column) for one in found} else kind
            for column, kind in by_column(getattr(layout, field)).items()
        )
        for field in (_HERE, _THERE)
    }
    return replace(layout, observation=kinds[_HERE], next_observation=kinds[_THERE], identities=tuple(found))


_NUMBERS = (Continuous, Bounded, Spiked)
_FEW = (Levels, Codebook, Binary)


def _sides(rows: Transitions) -> dict[str, Array]:
    return {field: getattr(rows, field) for field in FIELDS}


def _moved(parents: Sequence[Parent]) -> tuple[Parent, ...]:
    return tuple(parent._replace(field=_THERE) for parent in parents)


def _inside(states: Matrix, free: set[int], special: set[int]) -> list[Identity]:
    """The columns of `states` (N, W) that follow from others in all rows, in an order in which they can be computed.

    Only `free` columns may be left out. Of columns that follow from each other the last one is left out. One with
    `special` values stays if it can, because a sum would miss these values. A small difference of large columns always
    stays, because their errors are large beside it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = states.mean(0), states.std(0)
    kept: list[int] = []
    basis = np.empty((0, len(states)))  # orthonormal, of the columns that are kept
    found: list[Identity] = []
    for column in range(states.shape[1]):
        if not 0 < std[column] < np.inf or states[:, column].min() == states[:, column].max():
            continue  # the mean of equal numbers is rounded
        own = (states[:, column] - mean[column]) / std[column]
        left = own - basis.T @ (basis @ own)
        left -= basis.T @ (basis @ left)
        if not len(kept) or np.abs(left).max() > EXACT:
            kept.append(column)
            basis = np.concatenate([basis, (left / np.linalg.norm(left))[None]])
            continue
        follows = _rule(states, column, kept, std)
        if follows is None:
            continue
        able = [one for one in (column, *(parent.column for parent in follows.parents)) if one in free]
        for one in sorted(able, key=lambda one: (one in special and not follows.is_copy, one != column, -one)):
            others = [*(other for other in kept if other != one), column] if one != column else kept
            rule = follows if one == column else _rule(states, one, others, std)
            if rule is not None and _amplifies(rule, std) <= _AMPLIFIED:
                kept = others
                found.insert(0, rule)
                break
    return found


def _rule(states: Matrix, column: int, kept: Sequence[int], std: Matrix) -> Identity | None:
    """A column as a sum of multiples of kept columns: as few of them as possible, with rounded weights if these do."""
    parents, own = list(kept), states[:, column]
    while True:
        known = np.column_stack([states[:, parents] / std[parents], np.ones(len(states))])
        slopes = np.linalg.lstsq(known, own, rcond=None)[0]
        part = np.abs(slopes[:-1]) >= _NOTHING * std[column]
        if part.all() or not part.any():
            break
        parents = [one for one, counts in zip(parents, part.tolist(), strict=True) if counts]
    if not part.any():
        return None
    weights, level = slopes[:-1] / std[parents], float(slopes[-1])
    for digits in (_DIGITS, None):
        tried = weights if digits is None else np.round(weights, digits)
        start = level if digits is None else float(np.round((own - states[:, parents] @ tried).mean(), digits))
        if np.abs(states[:, parents] @ tried + start - own).max() <= EXACT * std[column]:
            linked = zip(parents, tried.tolist(), strict=True)
            return Identity(_HERE, column, tuple(Parent(_HERE, one, weight) for one, weight in linked), start)
    return None


def _amplifies(rule: Identity, std: Matrix) -> float:
    return sum(abs(one.weight) * float(std[one.column]) for one in rule.parents) / float(std[rule.column])


def _looked_up(layout: Layout, states: Matrix, rows: Transitions) -> list[Identity]:
    """The columns of a few values each whose value tells that of an earlier column, and the other way round, in all
    rows and on both sides. `states` is a sample, for a first look.

    A column that follows from another one, but not the other way round, stays: outcomes may follow from its numbers.
    The two coordinates of a few goals stay as well, because no line leads from one to the other.
    """
    few = {column: kind for column, kind in by_column(layout.observation).items() if isinstance(kind, _FEW)}
    kept: dict[int, tuple[NDArray[np.int64], int]] = {}
    found: list[Identity] = []
    for own in (column for column, kind in few.items() if kind.source_width == 1):
        values, codes = np.unique(states[:, own], return_inverse=True)
        same = [
            other
            for other, (theirs, count) in kept.items()
            if count == len(values) and len(np.unique(theirs * count + codes)) == count
        ]
        pairs = _pairs(rows, same[0], own) if same else ()
        if pairs and all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True)) and _on_a_line(pairs):
            found += [Identity(side, own, (Parent(side, same[0], 0.0),), 0.0, pairs) for side in (_HERE, _THERE)]
        elif 1 < len(values) <= _MOST_VALUES:
            kept[own] = codes, len(values)
    return found


def _on_a_line(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether all pairs but one lie on a line: that one may say that there is nothing. Any four are few enough."""
    points = np.array(pairs)
    if len(points) <= _ANY_FEW:
        return True
    with np.errstate(all="ignore"):  # of numbers too large to be squared, nothing is known
        for left_out in range(len(points)):
            some = np.delete(points, left_out, axis=0)
            at, own = ((some - some.mean(0)) / some.std(0)).T
            if np.abs((at * own).mean() * at - own).max() <= _NOTHING:
                return True
    return False


def _pairs(rows: Transitions, *columns: int) -> tuple[tuple[float, float], ...]:
    """The different pairs of values that two columns of the states have, in order; none where they are many."""
    pairs = np.empty((0, 2))
    for chunk in rows.chunks(1 << 16):
        for side in (chunk.observation, chunk.next_observation):
            pairs = np.unique(np.concatenate([pairs, side[:, columns].astype(np.float64)]), axis=0)
            if len(pairs) > _MOST_VALUES:
                return ()
    return tuple((at, own) for at, own in pairs.tolist())


def _copies(arrays: Mapping[str, Matrix], free: set[int]) -> list[Identity]:
    """The `free` columns of the next observation that equal a column of the observation or of the action."""
    sources: dict[bytes, tuple[str, int]] = {}
    for field in (_GIVEN, _HERE):
        for column, values in enumerate(arrays[field].T):
            sources[values.tobytes()] = field, column
    found = []
    for column in sorted(free):
        values = arrays[_THERE][:, column]
        source = sources.get(values.tobytes())
        if source is not None and values.min() < values.max():
            found.append(Identity(_THERE, column, (Parent(*source, 1.0),)))
    return found


def _holding(found: Sequence[Identity], rows: Transitions) -> list[Identity]:
    """Those that hold in all rows."""
    held = list(found)
    for chunk in rows.chunks(1 << 16) if held else ():
        sides = {field: values.reshape(len(chunk), -1) for field, values in _sides(chunk).items()}
        held = [one for one in held if _holds(one, sides)]
    return held


def _holds(one: Identity, sides: Mapping[str, Array]) -> bool:
    own = sides[one.field][:, one.column].astype(np.float64)  # squares of large float32 numbers are infinite
    if one.is_copy:
        ((field, column, _),) = one.parents
        return bool((own == sides[field][:, column]).all())
    told = sum(parent.weight * sides[parent.field][:, parent.column].astype(np.float64) for parent in one.parents)
    return bool(np.abs(told + one.level - own).max() <= 10 * EXACT * own.std())
