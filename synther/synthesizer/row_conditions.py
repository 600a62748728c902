"""Compute the conditions of the real rows of a fit: the conditions of the user, and which rows begin an episode.

Read `compute_conditions` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.conditions import EXAMPLES, FEWEST_STARTS, RARE_STARTS, START, Array, Conditions, Scale, start_repeats
from synther.data.episodes import episode_ids
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, SyntherError
from synther.relevance import relevance

_DEPEND_ON_OTHER_ROWS = ("return", "curiosity")
"""Relevance functions that need all rows, because the number of one row depends on other rows."""

Given = str | Array | Callable[[Transitions], Array]
"""How a user defines a condition: the name of a relevance function, an array (N,), or a function of rows that returns
such an array."""


@dataclass(frozen=True)
class RowConditions:
    """The conditions of each row of a fit, as the network sees them."""

    conditions: Conditions
    columns: NDArray[np.float32]
    """The inputs of the network: 1 for an episode start and 0 for other rows (if `first` is known), then the quantiles
    of the named conditions. (N, K)"""
    first: NDArray[np.bool_] | None
    """Which rows are episode starts (N,). None if episode starts are not a condition."""

    @property
    def repeats(self) -> NDArray[np.int64] | None:
        """How many times each row takes part in the fit (N,). None if every row takes part once."""
        if self.first is None:
            return None
        assert self.conditions.starts is not None
        return np.where(self.first, start_repeats(self.conditions.starts), 1)

    def appended_to(self, matrix: Tensor) -> Tensor:
        """Append the condition columns to the scaled rows (N, D). Return (N, D + K)."""
        return torch.cat([matrix, torch.from_numpy(self.columns).to(matrix)], dim=1)


def compute_conditions(rows: Transitions, condition: Any, first: NDArray[np.bool_] | None) -> RowConditions:
    """Compute the conditions of the `rows` of a fit: the `condition` that the user defined, and episode starts.

    `first` (N,) marks the episode starts. They become a condition if they are rare, but not too few to learn from. None
    if they are not known or not wanted as a condition.
    """
    named = _named(condition)
    values = {name: _numbers(name, given, rows) for name, given in named.items()}
    scales = tuple(Scale.fit(name, each) for name, each in values.items())
    if first is not None and not _are_learnable(first):
        first = None
    conditions = Conditions(scales, None if first is None else float(first.mean()))
    of_rows = _row_conditions(conditions, list(values.values()), first, len(rows))
    return replace(of_rows, conditions=replace(conditions, examples=_examples(of_rows))) if scales else of_rows


def _examples(of_rows: RowConditions) -> tuple[Array, ...]:
    """Choose rows at random and return their named conditions. See `Conditions.examples`."""
    named = of_rows.columns if of_rows.first is None else of_rows.columns[:, 1:]
    groups = [named] if of_rows.first is None else [named[~of_rows.first], named[of_rows.first]]
    random = np.random.default_rng(0)
    chosen = (group[random.permutation(len(group))[:EXAMPLES]] for group in groups)
    return tuple(np.round(group.astype(np.float64), 5) for group in chosen)


def compute_more_conditions(
    conditions: Conditions, rows: Transitions, condition: Any, first: NDArray[np.bool_] | None
) -> RowConditions:
    """Compute the conditions of further `rows` with the scales in `conditions`, which an earlier call has fitted.

    If `first` is None, no row counts as an episode start.
    """
    values = [_numbers(name, given, rows) for name, given in _named(condition).items()]
    if conditions.starts is None:
        return _row_conditions(conditions, values, None, len(rows))
    return _row_conditions(conditions, values, np.zeros(len(rows), bool) if first is None else first, len(rows))


def check_streamed(condition: Any) -> None:
    """Refuse conditions that cannot be computed while only some of the rows are in memory."""
    for name, given in _named(condition).items():
        is_array = not isinstance(given, str) and not callable(given)
        if is_array or given in _DEPEND_ON_OTHER_ROWS:
            what = "an array of numbers" if is_array else f"{given!r}"
            raise ConfigError(
                f"condition {name!r}: {what} needs all rows in memory, but these rows are streamed from disk. Use "
                "'reward' or a function of each single row, or raise fit.window_rows if there is enough memory"
            )


def _row_conditions(
    conditions: Conditions, values: list[Array], first: NDArray[np.bool_] | None, rows: int
) -> RowConditions:
    columns = [scale.quantiles(each) for scale, each in zip(conditions.scales, values, strict=True)]
    if first is not None:
        columns.insert(0, first)
    stacked = np.stack(columns, axis=1) if columns else np.empty((rows, 0))
    return RowConditions(conditions, stacked.astype(np.float32), first)


def first_rows(rows: Transitions) -> NDArray[np.bool_] | None:
    """Return which rows are episode starts (N,). None if the episodes are not known."""
    ids = episode_ids(rows) if len(rows) else None
    return None if ids is None else np.concatenate([[True], ids[1:] != ids[:-1]])


def _are_learnable(first: NDArray[np.bool_]) -> bool:
    """Whether episode starts become a condition: they must be rare, but not too few to learn from."""
    count = np.count_nonzero(first)
    return bool(count >= FEWEST_STARTS and count <= RARE_STARTS * len(first))


def _named(condition: Any) -> dict[str, Given]:
    """Return the condition that a user passed to `fit`, in any of its forms, as a dict of single conditions by name."""
    if condition is None:
        return {}
    if isinstance(condition, Mapping):
        named = dict(condition)
    elif isinstance(condition, str):
        named = {condition: condition}
    elif callable(condition):
        named = {getattr(condition, "__name__", "condition"): condition}
    elif isinstance(condition, Sequence) and condition and all(isinstance(each, str) for each in condition):
        named = {name: name for name in condition}
    else:
        values = np.asarray(condition)
        if values.ndim not in (1, 2):
            raise ConfigError(
                "condition: expected a name, a function of rows, an array (N,) or (N, K), or a dict of these by name; "
                f"got {condition!r}"
            )
        named = {"condition": values} if values.ndim == 1 else {f"condition{i}": v for i, v in enumerate(values.T)}
    for name in named:
        if not isinstance(name, str) or name == START or not name:
            raise ConfigError(f"condition: expected a name other than {START!r}, which is reserved, got {name!r}")
    return named


def _numbers(name: str, given: Given, rows: Transitions) -> NDArray[np.float64]:
    """Compute condition `name` for each row, and check the result. (N,)"""
    try:
        numbers = (
            relevance(given, rows)
            if isinstance(given, str)
            else np.asarray(given(rows) if callable(given) else given, np.float64)
        )
    except SyntherError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"condition {name!r}: expected one number for each row ({error})") from None
    if numbers.shape != (len(rows),):
        raise DataError(
            f"condition {name!r}: expected {len(rows)} numbers, one for each row, got shape {numbers.shape}"
        )
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers)))
        raise DataError(f"condition {name!r}: expected finite numbers, got {numbers[row]} in row {row}")
    return numbers
