"""Flags of observations that thresholds on other columns decide: a door that is open, a heating that is on.

A network makes such a flag with an error of its own, next to the limit and elsewhere. So it is decided by a tree of
thresholds, like a terminal (termination.py). Either the rest of an observation decides about its flag, on both sides of
a step. Or observation and action decide about a flag of the next observation; other outcomes then follow from what was
decided, since a room is heated where the heating is on.

NOTE[paper]: the reference generates flags like other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.kind import Array, Kind, by_column
from synther.data.termination import Decision, TerminationTree, learn
from synther.data.transitions import Transitions
from synther.data.values import Binary, Derived
from synther.errors import FormatError
from synther.schema import checked

if TYPE_CHECKING:
    from synther.data.layout import Layout

MOST_FLAGS = 8
RIGHT = 0.99
"""Precision and recall of both answers, in rows that a tree does not know, from which it decides about a flag."""
_HERE, _GIVEN, _THERE = "observation", "action", "next_observation"
_MOST_ROWS = 10_000


@dataclass(frozen=True)
class Flag:
    """A flag of an observation, and what decides about it."""

    column: int
    inside: bool
    """Whether the rest of an observation decides, on both sides; else observation and action do, for the next one."""
    tree: TerminationTree

    @property
    def sides(self) -> tuple[str, ...]:
        """The fields in which it is decided."""
        return (_HERE, _THERE) if self.inside else (_THERE,)

    def inputs(self, widths: Mapping[str, int]) -> list[tuple[str, int]]:
        """The columns that the tree asks about, of rows with fields of these widths. Those of an observation that
        decides about itself are given as columns of the next one."""
        fields = (_THERE,) if self.inside else (_HERE, _GIVEN)
        every = [(field, column) for field in fields for column in range(widths[field])]
        return [every[feature - _first(len(every))] for feature in self.tree.used]

    def texts(self, name: Callable[[str, int], str], widths: Mapping[str, int]) -> list[str]:
        """It in words; `name` is that of a field's column."""
        told = []
        for side in self.sides:
            asked = [name(side if self.inside else field, column) for field, column in self.inputs(widths)]
            told.append(f"{name(side, self.column)} is decided by {', '.join(asked) or 'nothing'}")
        return told

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "inside": self.inside, "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Flag:
        """Of rows whose fields have these kinds."""
        told = checked(entry, dict[str, Any], "layout.decided")
        wanted = (("column", int), ("inside", bool), ("tree", dict[str, Any]))
        column, inside, tree = (checked(told.get(name), kind, f"layout.decided.{name}") for name, kind in wanted)
        found = cls(column, inside, TerminationTree.from_json(tree))
        widths = {field: sum(kind.source_width for kind in kinds[field]) for field in (_HERE, _GIVEN, _THERE)}
        asked = widths[_THERE] if inside else widths[_HERE] + widths[_GIVEN]
        sides = (_HERE, _THERE) if inside else (_THERE,)
        is_flag = all(isinstance(by_column(kinds[field]).get(column), Binary) for field in sides)
        if not is_flag or not all(0 <= feature - _first(asked) < asked for feature in found.tree.used):
            raise FormatError("layout.decided: expected a column of two values, and a tree that asks about others")
        return found


class Flags:
    """Decides about flags, in fields (N, W) on a device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        after: Any = by_column(layout.next_observation)
        self._layout = layout
        self._flags = [
            (flag, after[flag.column], flag.inputs(layout.field_widths), Decision(flag.tree, device))
            for flag in layout.decided
        ]

    def put(self, fields: Mapping[str, Tensor]) -> None:
        """Write what is decided into fields (N, W)."""
        for flag, kind, inputs, decide in self._flags:
            for side in flag.sides:
                asked = [fields[side if flag.inside else field][:, column].double() for field, column in inputs]
                flags = fields[side][:, flag.column]
                answer = decide(torch.stack(asked) if asked else flags.new_empty((0, len(flags))).double())
                flags.fill_(kind.low).masked_fill_(answer, kind.high)

    def settle(self, raw: Tensor) -> None:
        """Put what observation and action decide into raw columns (D, N) in main memory, from which others follow."""
        matrix = raw.numpy().T
        for flag, _, inputs, decide in self._flags:
            if not flag.inside:
                asked = [_decoded(self._layout, field, column, matrix) for field, column in inputs]
                answer = decide(torch.from_numpy(np.stack(asked))).numpy()
                matrix[:, self._layout.next_columns[flag.column]] = answer


def _decoded(layout: Layout, field: str, column: int, matrix: Array) -> NDArray[np.float64]:
    """A column of a field, from the columns of the layout's matrix that hold it. (N,)"""
    for place in layout.places:
        if place.field == field and place.source.start <= column < place.source.stop:
            decoded = place.kind.decode(matrix[:, place.matrix])[:, column - place.source.start]
            return np.ascontiguousarray(decoded, np.float64)
    raise AssertionError(f"{field} has no column {column}")


def with_flags(layout: Layout, rows: Transitions) -> Layout:
    """The same layout, in which trees decide about flags that follow from other columns."""
    some = rows[:: -(-len(rows) // _MOST_ROWS)]
    here, there = (side.reshape(len(some), -1).astype(np.float64) for side in (some.observation, some.next_observation))
    action = some.action.reshape(len(some), -1).astype(np.float64)
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    likely = [column for column, kind in after.items() if isinstance(kind, Binary)][:MOST_FLAGS]
    found = []
    for column in likely:
        kind: Any = after[column]
        flag = there[:, column] == kind.high
        if before[column] == kind:
            rest, other = there.copy(), here.copy()
            rest[:, column] = other[:, column] = 0.0
            tree = _tree(rest, flag, (other, here[:, column] == kind.high))
            if tree is not None:
                found.append(Flag(column, True, tree))
                continue
        given = np.concatenate([here, action], axis=1)
        given[:, [place for place, own in before.items() if isinstance(own, Derived)]] = 0.0  # known too late
        tree = _tree(given, flag)
        if tree is not None:
            found.append(Flag(column, False, tree))
    return replace(layout, decided=tuple(found))


def _tree(
    features: Array, flag: NDArray[np.bool_], also: tuple[Array, NDArray[np.bool_]] | None = None
) -> TerminationTree | None:
    """A tree that tells the rows with a flag, if it does so in a fifth of the rows too, and in `also`."""
    part = len(flag) // 5
    tree = learn(_asked(features[part:]), truth=flag[part:])
    if tree is None or not _is_right(tree, features[:part], flag[:part]):
        return None
    return tree if also is None or _is_right(tree, *also) else None


def _asked(features: Array) -> Transitions:
    """Rows whose next observations are these features, and that have nothing else."""
    nothing = np.zeros_like(features)
    return Transitions(nothing, nothing[:, :1], nothing[:, 0], features, np.zeros(len(features), bool))


def _first(count: int) -> int:
    """The number that a tree has for the first of so many features."""
    return count + 2  # after those of an observation, an action and a reward


def _is_right(tree: TerminationTree, features: Array, flag: NDArray[np.bool_]) -> bool:
    told = tree.decide(_asked(features))
    for answer in (False, True):
        both = np.count_nonzero((told == answer) & (flag == answer))
        if both < RIGHT * max(np.count_nonzero(told == answer), np.count_nonzero(flag == answer)):
            return False
    return True
