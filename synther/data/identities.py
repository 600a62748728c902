"""Find columns that repeat what other columns say: an achieved goal that is the position, or shares that sum to 1.

A network generates each column with an independent error, so such columns would contradict each other. A regression on
them is collinear: it cannot decide which of them an outcome depends on. So these columns are left out of the matrix.
For generated rows they are computed from the other columns.

There are three kinds of identities. A column of an observation may be a linear combination of other columns of the same
observation. Or it has a few values, one for each value of another column. Both hold in the next observation too. And a
column of the next observation may be a copy of a column of the observation (a goal that stays in place) or the action.

NOTE[paper]: the reference generates all columns.
"""

from __future__ import annotations

import math
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
from synther.data.values import Binary, Constant, Derived, Integer, Levels
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout
    from synther.data.transitions import Transitions

Matrix = NDArray[np.float64]

FIELDS = ("observation", "action", "next_observation")
_HERE, _GIVEN, _THERE = FIELDS
EXACT = 1e-5
"""Maximum error of an identity in the rows of the search, in stds of the column. In all other rows it may be ten times
as large."""
_MOST_ROWS, _MOST_COLUMNS = 1 << 12, 512  # maximum number of rows, and of columns, in which identities are searched
_AMPLIFIED = 3.0  # maximum error of a computed column, relative to the error of its parents, in stds
_NOTHING = 1e-4  # contributions of a parent below this, in stds of the column, are left out
_DIGITS = 6  # number of decimals to which weights are rounded, if the identity then is as exact
_MOST_VALUES = 64  # maximum number of values of a column that is looked up by the value of another
_ANY_FEW = 4  # with at most this many values, any pairs are accepted, because a network can memorise them


class Parent(NamedTuple):
    """A column that another column is computed from."""

    field: str
    column: int
    weight: float


@dataclass(frozen=True)
class Identity:
    """A column that is computed: as a linear combination of its parents, or by looking up the value of one parent."""

    field: str
    column: int
    parents: tuple[Parent, ...]
    level: float = 0.0
    """Constant of the linear combination."""
    values: tuple[tuple[float, float], ...] = ()
    """For a lookup: pairs of a value of the only parent, in increasing order, and the value of this column. Empty for a
    linear combination."""
    ends: tuple[float, float] | None = None
    """Range of a column that is a sum or difference of its parents. None if it has no limits."""
    whole: bool = False
    """Whether the column and its parents are whole numbers, if it has a range."""

    def put(self, fields: Mapping[str, Tensor]) -> None:
        """Compute the column and write it into `fields`, (N, W) each, in place."""
        if self.values:
            ((field, column, _),) = self.parents
            given = fields[field][:, column].double()
            own = torch.full_like(given, self.values[0][1])
            # No tensor of values here: in a captured CUDA graph nothing can be copied from main memory.
            for (before, _), (at, value) in pairwise(self.values):
                own.masked_fill_(given > (before + at) / 2, value)
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
        if self.ends is not None:
            self._share_excess(total, fields)
        fields[self.field][:, self.column] = (total if own.is_floating_point() else total.round()).to(own.dtype)

    def _share_excess(self, total: Tensor, fields: Mapping[str, Tensor]) -> None:
        """Clip `total` (N,) to the range, and change the parents by as much, so that the sum holds: all in proportion,
        or the largest one if they are whole numbers."""
        assert self.ends is not None
        excess = total - total.clamp(*self.ends)
        total -= excess
        sizes = torch.stack([fields[field][:, column].double().abs() for field, column, _ in self.parents])
        largest, whole = sizes.argmax(0), sizes.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        for number, (field, column, weight) in enumerate(self.parents):
            own = fields[field][:, column]
            share = (largest == number).double() if self.whole else sizes[number] / whole
            own -= (weight * excess * share).to(own.dtype)

    @property
    def is_copy(self) -> bool:
        """Whether the column equals its only parent."""
        return len(self.parents) == 1 and self.parents[0].weight == 1.0 and self.level == 0.0 and not self.values

    def text(self, name: Callable[[str, int], str]) -> str:
        """Return the identity as text. `name` is a function from field and column to the name of the column."""
        if self.values:
            return f"{name(self.field, self.column)} follows from {name(self.parents[0].field, self.parents[0].column)}"
        parts = [(parent.weight, name(parent.field, parent.column)) for parent in self.parents]
        return f"{name(self.field, self.column)} = {written_sum(parts, self.level)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parents": [list(parent) for parent in self.parents]}

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Identity:
        """Read an identity from JSON. `kinds` are the kinds of each field's columns."""
        options = {**checked(entry, dict[str, Any], "layout.identities")}
        parents = checked(options.pop("parents", None), list[tuple[str, int, float]], "layout.identities.parents")
        found: Identity = checked({**options, "parents": []}, cls, "layout.identities")
        found = replace(found, parents=tuple(Parent(*parent) for parent in parents))
        finite((found.level, *(parent.weight for parent in found.parents)), "layout.identities")
        widths = {field: sum(kind.source_width for kind in kinds[field]) for field in FIELDS}
        places = [(found.field, found.column), *((parent.field, parent.column) for parent in found.parents)]
        if not all(field in FIELDS and 0 <= column < widths[field] for field, column in places):
            raise FormatError(
                f"layout.identities: expected columns of fields with these widths: {widths}, got {places}"
            )
        if found.values:
            finite(tuple(number for pair in found.values for number in pair), "layout.identities")
            if len(found.parents) != 1 or (np.diff([at for at, _ in found.values]) <= 0).any():
                raise FormatError(
                    f"layout.identities: expected one parent and its values in increasing order, got "
                    f"{len(found.parents)} parents and the values {[at for at, _ in found.values]}"
                )
        return found


def written_sum(parts: Sequence[tuple[float, str]], level: float) -> str:
    """Return a constant plus a weighted sum as text, such as "1 - x + 0.5 y"."""
    every = [*([(level, "")] if level or not parts else []), *parts]
    texts = [f"{abs(weight):.6g}" if not name or abs(weight) != 1 else "" for weight, name in every]
    signs = ["-" if weight < 0 else "+" for weight, _ in every]
    joined = " ".join(
        f"{sign} {' '.join(filter(None, (text, name)))}"
        for sign, text, (_, name) in zip(signs, texts, every, strict=True)
    )
    return joined[2:] if joined.startswith("+ ") else f"-{joined[2:]}"


def with_identities(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which columns that can be computed from others are `Derived`."""
    some = rows.shuffled(_MOST_ROWS)
    arrays = {field: values.reshape(len(some), -1).astype(np.float64) for field, values in _sides(some).items()}
    width = arrays[_HERE].shape[1]
    pairs = all(isinstance(kind, Constant) for kind in layout.next_observation)
    if pairs or width > _MOST_COLUMNS or len(some) < ROWS_PER_WEIGHT * width:
        return layout
    on_spheres = {column for sphere in layout.spheres for column in sphere.columns}
    free = set(by_column(layout.observation)) - on_spheres
    states = np.concatenate([arrays[_HERE], arrays[_THERE]])
    inside = _inside(states, free, layout.observation)
    same = [_moved(one, _THERE) for one in inside]
    known = {one.column for one in inside}
    may_be_copies = {
        column for column, kind in by_column(layout.next_observation).items() if isinstance(kind, _NUMBERS)
    } - known
    given = _inside(arrays[_GIVEN], set(by_column(layout.action)), layout.action)
    actions = [_moved(one, _GIVEN) for one in given]
    found = _holding([*inside, *actions, *_copies(arrays, may_be_copies), *same], rows)
    both = {one.column for one in found if one.field == _HERE} & {one.column for one in found if one.field == _THERE}
    lost = {one.column for one in inside} - both  # has to hold in observation and next observation
    found = [*_looked_up(layout, states, rows), *(one for one in found if one.column not in lost)]
    if not found:
        return layout
    kinds = {
        field: tuple(
            Derived() if (field, column) in {(one.field, one.column) for one in found} else kind
            for column, kind in by_column(getattr(layout, field)).items()
        )
        for field in FIELDS
    }
    return replace(
        layout,
        observation=kinds[_HERE],
        action=kinds[_GIVEN],
        next_observation=kinds[_THERE],
        identities=tuple(found),
    )


_NUMBERS = (Continuous, Bounded, Spiked, Integer)
_FEW = (Levels, Codebook, Binary)


def _sides(rows: Transitions) -> dict[str, Array]:
    """Return observations, actions and next observations by field."""
    return {field: getattr(rows, field) for field in FIELDS}


def _moved(one: Identity, field: str) -> Identity:
    """Return the same identity in another field."""
    return replace(one, field=field, parents=tuple(parent._replace(field=field) for parent in one.parents))


def _inside(states: Matrix, free: set[int], kinds: Sequence[Kind]) -> list[Identity]:
    """Return the columns of `states` (N, W) that are linear combinations of others, in an order to compute them in.

    Only `free` columns with numbers are computed; `kinds` are those of all columns. In a set of dependent columns, the
    last one is computed. Columns with spikes are kept if possible, because a sum would miss the exact value of a spike.
    A small difference of large columns is always kept, because the errors of the large columns are large compared with
    it.
    """
    by_place = by_column(kinds)
    free = {column for column in free if isinstance(by_place.get(column), _NUMBERS)}
    special = {column for column, kind in by_place.items() if isinstance(kind, Spiked)}
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = states.mean(0), states.std(0)
    kept: list[int] = []
    basis = np.empty((0, len(states)))  # orthonormal basis of the kept columns
    found: list[Identity] = []
    for column in range(states.shape[1]):
        if not 0 < std[column] < np.inf or states[:, column].min() == states[:, column].max():
            continue  # the std of equal numbers may be above 0, because their mean is rounded
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
        candidates = [one for one in (column, *(parent.column for parent in follows.parents)) if one in free]
        for one in sorted(candidates, key=lambda one: (one in special and not follows.is_copy, one != column, -one)):
            others = [*(other for other in kept if other != one), column] if one != column else kept
            rule = follows if one == column else _rule(states, one, others, std)
            if rule is not None and _amplifies(rule, std) <= _AMPLIFIED:
                kept = others
                found.insert(0, _within_range(rule, by_place))
                break
    return found


def _rule(states: Matrix, column: int, kept: Sequence[int], std: Matrix) -> Identity | None:
    """Return a column of `states` (N, W) as a linear combination of `kept` columns. None if it is not exact enough.

    `std` (W,) are the stds of the columns. Columns with tiny weights are left out. Weights are rounded if the
    combination is still exact.
    """
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
        start = start if abs(start) > EXACT * std[column] else 0.0  # or 0 times a weight would come back as 1e-12
        if np.abs(states[:, parents] @ tried + start - own).max() <= EXACT * std[column]:
            linked = zip(parents, tried.tolist(), strict=True)
            return Identity(_HERE, column, tuple(Parent(_HERE, one, weight) for one, weight in linked), start)
    return None


def _is_sum(rule: Identity) -> bool:
    """Return whether a column is a sum or difference of others: shares of a whole, people of three groups."""
    return all(abs(parent.weight) == 1 for parent in rule.parents) and len(rule.parents) > 1


def _within_range(rule: Identity, kinds: Mapping[int, Kind]) -> Identity:
    """Return the identity with the range of its column, if it is a sum or difference and the column has a range."""
    kind = kinds[rule.column]
    own = [kinds.get(column) for column in (rule.column, *(parent.column for parent in rule.parents))]
    whole = all(isinstance(one, Integer) for one in own)
    alike = whole or all(isinstance(one, (Continuous, Bounded)) for one in own)
    if not _is_sum(rule) or not alike or not isinstance(kind, (Bounded, Integer)):
        return rule
    return replace(rule, ends=(kind.low, kind.high), whole=whole)


def _amplifies(rule: Identity, std: Matrix) -> float:
    """Return how many times as large the error of a computed column may be as that of its parents, in stds.

    Errors of a sum are expected to be independent, so that one of ten shares can be computed from the others.
    """
    errors = [abs(one.weight) * float(std[one.column]) for one in rule.parents]
    return (math.hypot(*errors) if _is_sum(rule) else sum(errors)) / float(std[rule.column])


def _looked_up(layout: Layout, states: Matrix, rows: Transitions) -> list[Identity]:
    """Return the columns of few values that map one to one to an earlier column, in observation and next observation.

    The mapping must hold in all rows. `states` (N, W) is a sample for a first check. A column is kept if the mapping
    works in one direction only, because outcomes may depend on its numbers. The two coordinates of a few goals are kept
    too, because they are not on a line.
    """
    few = {column: kind for column, kind in by_column(layout.observation).items() if isinstance(kind, _FEW)}
    kept: dict[int, tuple[NDArray[np.int64], int]] = {}
    found: list[Identity] = []
    for column in (column for column, kind in few.items() if kind.source_width == 1):
        values, codes = np.unique(states[:, column], return_inverse=True)
        same = [
            other
            for other, (other_codes, count) in kept.items()
            if count == len(values) and len(np.unique(other_codes * count + codes)) == count
        ]
        pairs = _pairs(rows, same[0], column) if same else ()
        is_one_to_one = bool(pairs) and all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
        if is_one_to_one and _on_a_line(pairs):
            found += [Identity(side, column, (Parent(side, same[0], 0.0),), 0.0, pairs) for side in (_HERE, _THERE)]
        elif 1 < len(values) <= _MOST_VALUES:
            kept[column] = codes, len(values)
    return found


def _on_a_line(pairs: Sequence[tuple[float, float]]) -> bool:
    """Return whether all pairs except one lie on a line. The exception may stand for "nothing there".

    Up to `_ANY_FEW` pairs always pass.
    """
    points = np.array(pairs)
    if len(points) <= _ANY_FEW:
        return True
    with np.errstate(all="ignore"):  # squares of huge numbers overflow, and the comparison is then False
        for left_out in range(len(points)):
            some = np.delete(points, left_out, axis=0)
            at, own = ((some - some.mean(0)) / some.std(0)).T
            if np.abs((at * own).mean() * at - own).max() <= _NOTHING:
                return True
    return False


def _pairs(rows: Transitions, *columns: int) -> tuple[tuple[float, float], ...]:
    """Return the distinct pairs of values of two columns of observations and next observations, in order.

    Returns no pairs if there are more than `_MOST_VALUES`.
    """
    pairs = np.empty((0, 2))
    for chunk in rows.chunks(1 << 16):
        for side in (chunk.observation, chunk.next_observation):
            pairs = np.unique(np.concatenate([pairs, side[:, columns].astype(np.float64)]), axis=0)
            if len(pairs) > _MOST_VALUES:
                return ()
    return tuple((at, own) for at, own in pairs.tolist())


def _copies(arrays: Mapping[str, Matrix], free: set[int]) -> list[Identity]:
    """Return identities for the `free` columns of the next observation that equal a column of observation or action."""
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
    """Return those identities that hold in all rows."""
    held = list(found)
    for chunk in rows.chunks(1 << 16) if held else ():
        sides = {field: values.reshape(len(chunk), -1) for field, values in _sides(chunk).items()}
        held = [one for one in held if _holds(one, sides)]
    return held


def _holds(one: Identity, sides: Mapping[str, Array]) -> bool:
    """Return whether a linear combination holds in all rows with these fields, (N, W) each."""
    own = sides[one.field][:, one.column].astype(np.float64)  # float32 would overflow in squares of large numbers
    if one.is_copy:
        ((field, column, _),) = one.parents
        return bool((own == sides[field][:, column]).all())
    total = sum(parent.weight * sides[parent.field][:, parent.column].astype(np.float64) for parent in one.parents)
    return bool(np.abs(total + one.level - own).max() <= 10 * EXACT * own.std())
