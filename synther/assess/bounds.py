"""Find values that real rows cannot contain: values outside the declared space, or outside the range of real values.

The module also compares the scale of actions, because a common mistake is to mix rescaled with original actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.standard import Standard
from synther.data.spaces import limits
from synther.data.transitions import EXTRA, Transitions

Array = NDArray[Any]

_SLACK = 1e-6
"""Tolerance, as a share of the range of a column. Bounds of a float64 box differ by that much after a conversion to
float32."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Smallest and largest allowed value of each column, by field."""

    low: dict[str, Array]
    high: dict[str, Array]
    coarse: frozenset[str]
    """Fields that the real rows store as float32 or float16."""

    @classmethod
    def of(cls, real: Transitions) -> Bounds:
        """Return the bounds of the declared spaces. A bound that is not declared, or not finite, is taken from the real
        values.

        Observations and next observations have the same bounds, because they are the same quantity.
        """
        low, high = {}, {}
        ranges = {field: _range(_columns(real, field)) for field in real.modelled()}
        both = [ranges[field] for field in ("observation", "next_observation")]
        widest = np.minimum(both[0][0], both[1][0]), np.maximum(both[0][1], both[1][1])
        ranges["observation"] = ranges["next_observation"] = widest
        spaces = {
            "observation": real.observation_space,
            "next_observation": real.observation_space,
            "action": real.action_space,
            f"{EXTRA}next_action": real.action_space,
        }
        for field, (least, most) in ranges.items():
            declared_low, declared_high = limits(spaces.get(field), len(least))
            bottom = np.where(np.isfinite(declared_low), declared_low, least)
            top = np.where(np.isfinite(declared_high), declared_high, most)
            with np.errstate(over="ignore"):
                span = top - bottom
            slack = _SLACK * np.where(np.isfinite(span), span, 0.0)
            low[field], high[field] = bottom - slack, top + slack
        return cls(low, high, frozenset(field for field, array in real.modelled().items() if _is_coarse(array)))

    def outside(self, rows: Transitions, field: str) -> Array:
        """Return which values of a field are out of bounds. (n, D) booleans

        If values or bounds are float32, both are compared as float32. Otherwise 0.1 in float32 would be larger than 0.1
        in float64.
        """
        values, low, high = _columns(rows, field), self.low[field], self.high[field]
        if field in self.coarse or _is_coarse(values):
            with np.errstate(over="ignore"):
                values, low, high = (numbers.astype(np.float32, copy=False) for numbers in (values, low, high))
        beyond: Array = (values < low) | (values > high)
        return beyond


def actions_outside(real: Transitions, synthetic: Transitions) -> float:
    """Return the share of synthetic rows with an action outside the bounds of real actions. Range 0 (best) to 1."""
    return share_outside(Bounds.of(real), synthetic, "action")


def action_scale(real: Transitions, synthetic: Transitions) -> float | None:
    """Return the std of the synthetic actions divided by that of the real actions, in the dimension that differs most.

    Range 0 to infinity; 1 is right. None for discrete actions, and if real actions never change.
    """
    if real.action.ndim == 1 or synthetic.action.ndim == 1:
        return None
    known, other = (Standard.of(rows.action) for rows in (real, synthetic))
    if not known.varies.any():
        return None
    ratios = np.where(other.varies, other.std, 0.0)[known.varies] / known.std[known.varies]
    return float(ratios[np.argmax(np.abs(np.log(np.maximum(ratios, 1e-6))))])


def rescaled_actions(real: Transitions, synthetic: Transitions) -> str | None:
    """Return a warning if the actions of one side look rescaled to [-1, 1], as Stable-Baselines3 stores them, but the
    actions of the other side, or the declared box, do not. Otherwise return None."""
    if real.action.ndim == 1 or synthetic.action.ndim == 1:
        return None
    sides = {"real": _range(real.action), "synthetic": _range(synthetic.action)}
    fills = {name: _fills_unit_box(*ends) for name, ends in sides.items()}
    declared = [limits(rows.action_space, rows.action.shape[1]) for rows in (real, synthetic)]
    boxes = [box for box in declared if np.isfinite(box).all() and not _is_unit_box(*box)]
    if fills["real"] != fills["synthetic"]:
        scaled, other = ("real", "synthetic") if fills["real"] else ("synthetic", "real")
        if not _is_unit_box(*sides[other]):
            low, high = sides[other]
            return (
                f"The {scaled} actions look rescaled to [-1, 1]: they fill exactly this range, but the {other} actions "
                f"lie between {low.min():.3g} and {high.max():.3g}. Convert both to the units of the environment."
            )
    elif fills["real"] and boxes:
        low, high = boxes[0]
        return (
            "The actions look rescaled to [-1, 1]: they fill exactly this range, but the declared action space reaches "
            f"from {low.min():.3g} to {high.max():.3g}. Convert them to the units of the environment."
        )
    return None


def _fills_unit_box(low: Array, high: Array) -> bool:
    """Return whether values reach both ends of [-1, 1] in every dimension and never exceed them."""
    within = (low >= -1 - _SLACK).all() and (high <= 1 + _SLACK).all()
    return bool(within and (low <= -0.95).all() and (high >= 0.95).all())


def _is_unit_box(low: Array, high: Array) -> bool:
    """Return whether a range is about [-1, 1] in every dimension."""
    return bool((np.abs(low + 1) < 0.1).all() and (np.abs(high - 1) < 0.1).all())


def share_outside(bounds: Bounds, rows: Transitions, *fields: str) -> float:
    """Return the share of rows with at least one value of `fields` out of bounds. Range 0 (best) to 1."""
    beyond = np.zeros(len(rows), bool)
    for field in fields:
        beyond |= bounds.outside(rows, field).any(axis=1)
    return float(beyond.mean())


def _is_coarse(values: Array) -> bool:
    return values.dtype in (np.float16, np.float32)


def _columns(rows: Transitions, field: str) -> Array:
    columns: Array = rows.arrays()[field].reshape(len(rows), -1)
    return columns


def _range(columns: Array) -> tuple[Array, Array]:
    return columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)
