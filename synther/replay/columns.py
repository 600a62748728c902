"""The layout of transitions in a matrix with one transition per row, and the batches that are drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from synther.data import spaces
from synther.data.spaces import Box, Space
from synther.data.transitions import EXTRA, Transitions
from synther.errors import DataError
from synther.schema import checked

Matrix = NDArray[np.float32]

EXACT = 2**24
"""float32 represents all integers up to this one."""


class Batch(NamedTuple):
    """B rows on the device of the replay, as views of one tensor."""

    observation: Tensor
    """(B, O)"""
    action: Tensor
    """(B, A) float32, or int64 for integer actions, with shape (B,) if there is one discrete action"""
    reward: Tensor
    """(B,)"""
    next_observation: Tensor
    """(B, O)"""
    terminal: Tensor
    """(B,), 0 or 1"""
    synthetic: Tensor
    """(B,) bool: which rows are synthetic"""


@dataclass(frozen=True)
class Columns:
    """Layout of a float32 matrix of rows: observation, action, reward, terminal, next observation, extra columns."""

    observation: int
    """Number of columns of an observation."""
    action: int
    """Number of columns of an action."""
    whole: bool = False
    """Whether actions are integers."""
    flat: bool = False
    """Whether an action is a single integer, so that actions have shape (N,)."""
    action_space: Space | None = None
    observation_space: Space | None = None
    extra: tuple[tuple[str, int], ...] = ()
    """Name and width of each extra field. Width 0: a single number per row, with shape (N,)."""

    @classmethod
    def of(cls, rows: Transitions) -> Columns:
        """Return the layout of `rows`."""
        action = rows.action.reshape(len(rows), -1)
        boxed = any(isinstance(part, Box) for part in rows.action_space or ())
        whole = rows.action.dtype.kind in "iu" and not boxed
        flat = whole and rows.action.ndim == 1
        size = rows.observation.shape[1], action.shape[1]
        extra = tuple((name, array.shape[1] if array.ndim > 1 else 0) for name, array in rows.extra.items())
        return cls(*size, whole, flat, rows.action_space, rows.observation_space, extra)

    @property
    def width(self) -> int:
        """Number of columns of the matrix."""
        return self._pairs_end + sum(max(1, width) for _, width in self.extra)

    @property
    def _pairs_end(self) -> int:
        """Number of columns without extra columns."""
        return 2 * self.observation + self.action + 2

    @cached_property
    def places(self) -> dict[str, slice]:
        """The columns of each field in the matrix. Extra fields have the key `extra/NAME`."""
        pair = self.observation + self.action
        places = {
            "observation": slice(0, self.observation),
            "action": slice(self.observation, pair),
            "reward": slice(pair, pair + 1),
            "terminal": slice(pair + 1, pair + 2),
            "next_observation": slice(pair + 2, self._pairs_end),
        }
        start = self._pairs_end
        for name, width in self.extra:
            places[EXTRA + name] = slice(start, start + max(1, width))
            start += max(1, width)
        return places

    def pack(self, rows: Transitions) -> Matrix:
        """Return the rows as a matrix (N, width).

        Raises an error if rows have other shapes than this layout, or values that float32 cannot represent.
        """
        if rows.extra.keys() != dict(self.extra).keys():
            raise DataError(
                f"the rows have the extra columns {', '.join(rows.extra) or 'none'}, earlier rows had "
                f"{', '.join(dict(self.extra)) or 'none'}: expected the same; drop columns with without_extra()"
            )
        matrix = np.empty((len(rows), self.width), np.float32)
        arrays = rows.modelled()
        with np.errstate(over="ignore"):
            for name, place in self.places.items():
                values, target = arrays[name].reshape(len(rows), -1), matrix[:, place]
                if values.shape[1] != target.shape[1]:
                    raise DataError(
                        f"{name} has {values.shape[1]} columns, earlier rows had {target.shape[1]}: expected the same; "
                        "a replay buffer belongs to one environment"
                    )
                target[:] = values
        if not np.isfinite(matrix).all():
            raise DataError("a value is too large for float32, the type of stored rows: divide it by a constant")
        if self.whole:
            actions = rows.action.ravel()
            wrong = (actions != np.rint(actions)) | (np.abs(actions) > EXACT)
            if wrong.any():
                raise DataError(
                    f"action is {actions[wrong][0]}: expected integers up to {EXACT:,}, as earlier rows had"
                )
        return matrix

    def pack_parts(self, parts: Iterable[Transitions], count: int) -> Matrix:
        """Pack `count` rows that come in several parts, see `pack`."""
        matrix = np.empty((count, self.width), np.float32)
        filled = 0
        for part in parts:
            matrix[filled : filled + len(part)] = self.pack(part)
            filled += len(part)
        if filled != count:
            raise DataError(f"expected {count:,} rows in all parts together, got {filled:,}")
        return matrix

    def transitions(self, matrix: Matrix, timeout: NDArray[np.bool_] | None = None) -> Transitions:
        """Convert a matrix (N, width) that `pack` returned back to rows."""
        fields = {name: matrix[:, place] for name, place in self.places.items()}
        action = fields["action"].astype(np.int64) if self.whole else fields["action"]
        return Transitions(
            observation=fields["observation"],
            action=action[:, 0] if self.flat else action,
            reward=fields["reward"][:, 0],
            next_observation=fields["next_observation"],
            terminal=fields["terminal"][:, 0],
            timeout=timeout,
            action_space=self.action_space,
            observation_space=self.observation_space,
            extra={name: fields[EXTRA + name] if width else fields[EXTRA + name][:, 0] for name, width in self.extra},
        )

    def batch(self, rows: Tensor, synthetic: Tensor) -> Batch:
        """Convert rows (B, width) to a `Batch`. `synthetic` (B,) marks synthetic rows."""
        fields = {name: rows[:, place] for name, place in self.places.items()}
        action = fields["action"].long() if self.whole else fields["action"]
        return Batch(
            observation=fields["observation"],
            action=action[:, 0] if self.flat else action,
            reward=fields["reward"][:, 0],
            next_observation=fields["next_observation"],
            terminal=fields["terminal"][:, 0],
            synthetic=synthetic,
        )

    def to_json(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("observation", "action", "whole", "flat", "extra")}
        known = {name: spaces.to_json(getattr(self, name)) for name in ("action_space", "observation_space")}
        return {**named, **known}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Columns:
        rest = checked(entry, dict[str, Any], "columns")
        action, observation = (spaces.from_json(rest.pop(f"{name}_space", None)) for name in ("action", "observation"))
        columns: Columns = checked(rest, cls, "columns")
        return replace(columns, action_space=action, observation_space=observation)
