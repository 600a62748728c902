"""Compute flags of observations that depend on thresholds of other columns: a door is open, a heating is on.

A flag is a column with two values. A network generates it with errors, near the threshold and elsewhere. So it is
decided by a decision tree, like a terminal (termination.py). There are two cases. A flag may depend on the rest of its
own observation, in observation and next observation. Or a flag of the next observation depends on observation and
action. Other outcomes are then generated given the decided flag: a room gets warmer where the heating is on.

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
"""Maximum number of flags for which a tree is fitted."""
RIGHT = 0.99
"""Minimum precision and recall of both answers of a tree, in rows that it was not fitted on."""
_HERE, _GIVEN, _THERE = "observation", "action", "next_observation"
_MOST_ROWS = 10_000  # maximum number of rows that trees are fitted on and judged by


@dataclass(frozen=True)
class Flag:
    """A flag of an observation, and the decision tree that computes it."""

    column: int
    inside: bool
    """True if the flag depends on the rest of its own observation, in observation and next observation. False if a flag
    of the next observation depends on observation and action."""
    tree: TerminationTree

    @property
    def sides(self) -> tuple[str, ...]:
        """The fields in which the flag is computed."""
        return (_HERE, _THERE) if self.inside else (_THERE,)

    def inputs(self, widths: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return field and column of each input of the tree. `widths` are the numbers of columns of the fields.

        If the flag depends on its own observation, the inputs are named as columns of the next observation.
        """
        fields = (_THERE,) if self.inside else (_HERE, _GIVEN)
        every = [(field, column) for field in fields for column in range(widths[field])]
        return [every[feature - _first(len(every))] for feature in self.tree.used]

    def texts(self, name: Callable[[str, int], str], widths: Mapping[str, int]) -> list[str]:
        """Return a text for each side of the flag. `name` is a function from field and column to the column's name."""
        texts = []
        for side in self.sides:
            inputs = [name(side if self.inside else field, column) for field, column in self.inputs(widths)]
            texts.append(f"{name(side, self.column)} is decided by {', '.join(inputs) or 'nothing'}")
        return texts

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "inside": self.inside, "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Any, kinds: Mapping[str, Sequence[Kind]]) -> Flag:
        """Read a flag from JSON. `kinds` are the kinds of each field's columns."""
        options = checked(entry, dict[str, Any], "layout.decided")
        wanted = (("column", int), ("inside", bool), ("tree", dict[str, Any]))
        column, inside, tree = (checked(options.get(name), kind, f"layout.decided.{name}") for name, kind in wanted)
        found = cls(column, inside, TerminationTree.from_json(tree))
        widths = {field: sum(kind.source_width for kind in kinds[field]) for field in (_HERE, _GIVEN, _THERE)}
        count = widths[_THERE] if inside else widths[_HERE] + widths[_GIVEN]
        sides = (_HERE, _THERE) if inside else (_THERE,)
        is_flag = all(isinstance(by_column(kinds[field]).get(column), Binary) for field in sides)
        if not is_flag or not all(0 <= feature - _first(count) < count for feature in found.tree.used):
            raise FormatError(
                f"layout.decided: expected a column of two values and a tree with features from {_first(count)} to "
                f"{_first(count) + count - 1}, got column {column} and the features {found.tree.used}"
            )
        return found


class Flags:
    """Computes the flags of rows, on a device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        after: Any = by_column(layout.next_observation)
        self._layout = layout
        self._flags = [
            (flag, after[flag.column], flag.inputs(layout.field_widths), Decision(flag.tree, device))
            for flag in layout.decided
        ]

    def put(self, fields: Mapping[str, Tensor]) -> None:
        """Write all flags into `fields`, (N, W) each, in place."""
        for flag, kind, inputs, decide in self._flags:
            for side in flag.sides:
                values = [fields[side if flag.inside else field][:, column].double() for field, column in inputs]
                flags = fields[side][:, flag.column]
                answer = decide(torch.stack(values) if values else flags.new_empty((0, len(flags))).double())
                flags.fill_(kind.low).masked_fill_(answer, kind.high)

    def settle(self, raw: Tensor) -> None:
        """Write the flags that depend on observation and action into the matrix `raw` (D, N), in place.

        `raw` is in main memory and not scaled. Other outcomes are computed from these flags afterwards.
        """
        matrix = raw.numpy().T
        for flag, _, inputs, decide in self._flags:
            if not flag.inside:
                values = [_decoded(self._layout, field, column, matrix) for field, column in inputs]
                answer = decide(torch.from_numpy(np.stack(values))).numpy()
                matrix[:, self._layout.next_columns[flag.column]] = answer


def _decoded(layout: Layout, field: str, column: int, matrix: Array) -> NDArray[np.float64]:
    """Decode one column of a field from rows of the layout's matrix (N, D). (N,)"""
    for place in layout.places:
        if place.field == field and place.source.start <= column < place.source.stop:
            decoded = place.kind.decode(matrix[:, place.matrix])[:, column - place.source.start]
            return np.ascontiguousarray(decoded, np.float64)
    raise AssertionError(f"{field} has no column {column}")


def with_flags(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which decision trees compute the flags that depend on thresholds of other columns."""
    some = rows.shuffled(_MOST_ROWS)
    here, there = (side.reshape(len(some), -1).astype(np.float64) for side in (some.observation, some.next_observation))
    action = some.action.reshape(len(some), -1).astype(np.float64)
    before, after = by_column(layout.observation), by_column(layout.next_observation)
    needed = {one.flag[0] for one in layout.held if one.flag}  # before these flags are decided
    flags = [column for column, kind in after.items() if isinstance(kind, Binary) and column not in needed]
    found = []
    for column in flags[:MOST_FLAGS]:
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
        given[:, [place for place, own in before.items() if isinstance(own, Derived)]] = 0.0  # they are computed later
        tree = _tree(given, flag)
        if tree is not None:
            found.append(Flag(column, False, tree))
    return replace(layout, decided=tuple(found))


def _tree(
    features: Array, flag: NDArray[np.bool_], also: tuple[Array, NDArray[np.bool_]] | None = None
) -> TerminationTree | None:
    """Fit a tree that predicts a `flag` (N,) from `features` (N, F). Returns None if it is not right often enough.

    It is judged by a fifth of the rows, on which it is not fitted, and by the features and flags in `also`.
    """
    part = len(flag) // 5
    tree = learn(_as_rows(features[part:]), truth=flag[part:])
    if tree is None or not _is_right(tree, features[:part], flag[:part]):
        return None
    return tree if also is None or _is_right(tree, *also) else None


def _as_rows(features: Array) -> Transitions:
    """Return rows with these features (N, F) as next observations and zeros in all other fields."""
    nothing = np.zeros_like(features)
    return Transitions(nothing, nothing[:, :1], nothing[:, 0], features, np.zeros(len(features), bool))


def _first(count: int) -> int:
    """Return the number of the first feature in a tree that was fitted on `_as_rows` with `count` features."""
    return count + 2  # an observation of `count` columns, an action and a reward come before it


def _is_right(tree: TerminationTree, features: Array, flag: NDArray[np.bool_]) -> bool:
    """Return whether precision and recall of a tree are at least `RIGHT` for both answers."""
    decided = tree.decide(_as_rows(features))
    for answer in (False, True):
        both = np.count_nonzero((decided == answer) & (flag == answer))
        if both < RIGHT * max(np.count_nonzero(decided == answer), np.count_nonzero(flag == answer)):
            return False
    return True
