"""Values that real experience cannot hold: beyond the declared bounds, or beyond what was ever seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.spaces import Box, Discrete, Space
from synther.data.transitions import ROW_FIELDS, Transitions

Array = NDArray[Any]

_SLACK = 1e-6
"""Share of a column's span that is forgiven: float32 values of a float64 box are off by that much."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lowest and highest allowed value of every column of a row, field by field."""

    low: dict[str, Array]
    high: dict[str, Array]
    coarse: frozenset[str]
    """Fields that the real rows have as float32, or coarser."""

    @classmethod
    def of(cls, real: Transitions) -> Bounds:
        """The declared space where it has finite bounds, elsewhere the smallest and the largest real value.

        An observation and the next one share their bounds: they are the same quantity a step apart.
        """
        low, high = {}, {}
        seen = {field: _range(_columns(real, field)) for field in ROW_FIELDS}
        both = [seen[field] for field in ("observation", "next_observation")]
        widest = np.minimum(both[0][0], both[1][0]), np.maximum(both[0][1], both[1][1])
        seen["observation"] = seen["next_observation"] = widest
        spaces = {
            "observation": real.observation_space,
            "next_observation": real.observation_space,
            "action": real.action_space,
        }
        for field, (least, most) in seen.items():
            declared_low, declared_high = _declared(spaces.get(field), len(least))
            bottom = np.where(np.isfinite(declared_low), declared_low, least)
            top = np.where(np.isfinite(declared_high), declared_high, most)
            with np.errstate(over="ignore"):
                span = top - bottom
            slack = _SLACK * np.where(np.isfinite(span), span, 0.0)
            low[field], high[field] = bottom - slack, top + slack
        return cls(low, high, frozenset(field for field in ROW_FIELDS if _is_coarse(getattr(real, field))))

    def outside(self, rows: Transitions, field: str) -> Array:
        """Which values of a field are out of bounds: (n, D) of booleans.

        Where either side is float32 both are compared as such: 0.1 is then no larger than 0.1.
        """
        values, low, high = _columns(rows, field), self.low[field], self.high[field]
        if field in self.coarse or _is_coarse(values):
            with np.errstate(over="ignore"):
                values, low, high = (numbers.astype(np.float32, copy=False) for numbers in (values, low, high))
        beyond: Array = (values < low) | (values > high)
        return beyond


def actions_outside(real: Transitions, synthetic: Transitions) -> float:
    """Share of synthetic rows with an action that the real action space does not allow. Range 0 (best) to 1."""
    return share_outside(Bounds.of(real), synthetic, "action")


def share_outside(bounds: Bounds, rows: Transitions, *fields: str) -> float:
    """Share of rows with a value of `fields` out of bounds. Range 0 (best) to 1."""
    beyond = np.zeros(len(rows), bool)
    for field in fields:
        beyond |= bounds.outside(rows, field).any(axis=1)
    return float(beyond.mean())


def _is_coarse(values: Array) -> bool:
    return values.dtype in (np.float16, np.float32)


def _columns(rows: Transitions, field: str) -> Array:
    columns: Array = getattr(rows, field).reshape(len(rows), -1)
    return columns


def _range(columns: Array) -> tuple[Array, Array]:
    return columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)


def _declared(space: Space | None, width: int) -> tuple[Array, Array]:
    if space is None:
        return np.full(width, -np.inf), np.full(width, np.inf)
    bounds: list[tuple[float, float]] = []
    for part in space:
        if isinstance(part, Box):
            bounds += zip(part.low, part.high, strict=True)
        elif isinstance(part, Discrete):
            bounds.append((part.start, part.start + part.size - 1))
        else:
            bounds += [(0.0, 1.0)] * part.width
    low, high = np.array(bounds, np.float64).T
    return low, high
