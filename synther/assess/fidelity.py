"""How close synthetic rows are to real ones. Every measure is a pure function with its range and its best value.

The columns compared are those of the paper's matrix: observation, action, reward, next observation, and the terminal
flag as 0 or 1. `ks_similarity` and `correlation` follow the definitions that SDMetrics calls KSComplement and
CorrelationSimilarity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.data.spaces import Box, Discrete
from synther.data.transitions import ROW_FIELDS, Transitions
from synther.errors import DataError

Array = NDArray[Any]

MAX_ROWS = 1_000_000
"""Rows of each side that `compare` looks at; more change no figure in its third digit."""

_CHUNK_ROWS = 1 << 16
_QUERY_ROWS = 256


def ks_similarity(real: ArrayLike, synthetic: ArrayLike) -> float:
    """1 minus the two-sample Kolmogorov-Smirnov statistic of two columns (n,) and (m,).

    Range 0 (no overlap) to 1 (the same distribution); higher is better. When one column is float32 both are compared
    as float32, so that storing a column more coarsely does not look like another distribution.
    """
    first, second = _alike(_sample("real", real), _sample("synthetic", synthetic))
    return _ks_of_sorted(np.sort(first), np.sort(second))


def marginal(real: ArrayLike, synthetic: ArrayLike) -> tuple[Array, float]:
    """`ks_similarity` of every column of two matrices (n, D) and (m, D), and its mean.

    Range 0 to 1; higher is better.
    """
    first, second = _matrices(real, synthetic)
    # Columns made contiguous once: sorting them out of rows would be a cache miss a value.
    pairs = zip(np.ascontiguousarray(first.T), np.ascontiguousarray(second.T), strict=True)
    per_column = np.array([ks_similarity(a, b) for a, b in pairs])
    return per_column, float(per_column.mean())


def correlation(real: ArrayLike, synthetic: ArrayLike) -> float:
    """Mean over pairs of columns of 1 - |r_real - r_synthetic| / 2, with Pearson's r.

    Range 0 (every pair from +1 to -1) to 1 (the same correlations); higher is better. A column that is constant on
    either side has no correlation and is left out; NaN when fewer than two columns remain.
    """
    first, second = _matrices(real, synthetic)
    varies = _varies(first) & _varies(second)
    if np.count_nonzero(varies) < 2:
        return math.nan
    difference = np.abs(pearson(first[:, varies]) - pearson(second[:, varies]))
    return float(np.mean(1.0 - difference[np.triu_indices_from(difference, k=1)] / 2.0))


def dynamics_error(transitions: Transitions, true_next: ArrayLike, real: Transitions) -> float:
    """How far the next observations of `transitions` are from `true_next` (N, O), which a simulator gave for the same
    observations and actions: the median over rows of the mean over columns of the squared difference, in standard
    deviations of the real next observations.

    Range 0 (physics kept) to infinity; lower is better. Columns that never change in the real data are left out. A
    row the simulator could not follow (NaN) counts as infinitely far.
    """
    truth = np.asarray(true_next, np.float64)
    if truth.shape != transitions.next_observation.shape:
        raise DataError(f"true_next has shape {truth.shape}: expected {transitions.next_observation.shape}")
    if real.next_observation.shape[1] != truth.shape[1]:
        raise DataError(
            f"the real rows have {real.next_observation.shape[1]} observation columns, not {truth.shape[1]}"
        )
    deviation = real.next_observation.std(axis=0, dtype=np.float64)
    varies = deviation > 0
    if not varies.any():
        raise DataError("every next observation of the real rows is the same: there is no scale to measure errors by")
    error = (transitions.next_observation[:, varies] - truth[:, varies]) / deviation[varies]
    distance = np.mean(np.square(error), axis=1)
    return float(np.median(np.where(np.isnan(distance), np.inf, distance)))


def novelty(real: Transitions, synthetic: Transitions, *, max_rows: int = 2_000, seed: int = 0) -> float:
    """Median distance of a synthetic row to its nearest real row, every column in real standard deviations.

    Range 0 (copies) to infinity. Neither end is best: copies teach nothing, and far rows may be wrong. Every real row
    is searched; of the synthetic ones at most `max_rows`, drawn with `seed`.
    """
    _check_columns(real, synthetic)
    chosen = _at_most(synthetic, max_rows, seed)
    known, asked = matrices_of(real, chosen)
    deviation = known.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 0, 1.0 / np.where(deviation > 0, deviation, 1.0), 0.0)
    centre = known.mean(axis=0, dtype=np.float64)
    known = ((known - centre) * scale).astype(np.float32)
    asked = ((asked - centre) * scale).astype(np.float32)
    nearest = known[_nearest(known, asked)]
    return float(np.median(np.linalg.norm(asked.astype(np.float64) - nearest, axis=1)))


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `dynamics` and `novelty` are there when somebody measured them too."""

    rows_real: int
    rows_synthetic: int
    marginal: float
    worst_column: str
    worst_value: float
    correlation: float
    terminal_rate_real: float
    terminal_rate_synthetic: float
    actions_outside: float
    columns: dict[str, float]
    dynamics: float | None = None
    novelty: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; a figure that does not exist is None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Comparison:
        return cls(**{**entry, "correlation": math.nan if entry["correlation"] is None else entry["correlation"]})

    def table(self) -> list[tuple[str, str]]:
        """Rows of a name and a figure, for printing."""
        rows = [
            ("marginal", f"{self.marginal:.4f}"),
            ("worst column", f"{self.worst_value:.4f} ({self.worst_column})"),
            ("correlation", "-" if math.isnan(self.correlation) else f"{self.correlation:.4f}"),
        ]
        if self.dynamics is not None:
            rows.append(("dynamics error", f"{self.dynamics:.4g}"))
        if self.novelty is not None:
            rows.append(("novelty", f"{self.novelty:.3g}"))
        rates = f"{self.terminal_rate_synthetic:.3%} (real {self.terminal_rate_real:.3%})"
        rows += [("terminals", rates), ("actions out of the box", f"{self.actions_outside:.2%}")]
        return rows


def compare(real: Transitions, synthetic: Transitions, *, max_rows: int = MAX_ROWS, seed: int = 0) -> Comparison:
    """All measures that need nothing but the rows. Of either side at most `max_rows` rows are looked at."""
    _check_columns(real, synthetic)
    first, second = _at_most(real, max_rows, seed), _at_most(synthetic, max_rows, seed)
    a, b = matrices_of(first, second)
    names = column_names(real)
    per_column, mean = marginal(a, b)
    worst = int(per_column.argmin())
    return Comparison(
        rows_real=len(real),
        rows_synthetic=len(synthetic),
        marginal=mean,
        worst_column=names[worst],
        worst_value=float(per_column[worst]),
        correlation=correlation(a, b),
        terminal_rate_real=float(real.terminal.mean()),
        terminal_rate_synthetic=float(synthetic.terminal.mean()),
        actions_outside=actions_outside(real, synthetic),
        columns={name: float(value) for name, value in zip(names, per_column, strict=True)},
    )


def actions_outside(real: Transitions, synthetic: Transitions) -> float:
    """Share of synthetic rows with an action that the real action space does not allow. Range 0 (best) to 1.

    Where the space is unknown, the smallest and the largest real action of each column stand for it.
    """
    known, asked = real.action.reshape(len(real), -1), synthetic.action.reshape(len(synthetic), -1)
    if real.action_space is None:
        low, high = known.min(axis=0).astype(np.float64), known.max(axis=0).astype(np.float64)
    else:
        bounds: list[tuple[float, float]] = []
        for part in real.action_space:
            if isinstance(part, Box):
                bounds += zip(part.low, part.high, strict=True)
            elif isinstance(part, Discrete):
                bounds.append((part.start, part.start + part.size - 1))
            else:
                bounds += [(0.0, 1.0)] * part.width
        low, high = np.array(bounds, np.float64).T
    slack = 1e-6 * np.where(np.isfinite(high - low), high - low, 0.0)
    return float(np.mean(((asked < low - slack) | (asked > high + slack)).any(axis=1)))


def column_names(transitions: Transitions) -> list[str]:
    """A name for each column, such as `observation[0]`, `action[1]` (`action` if it is discrete), `reward`."""
    names: list[str] = []
    for field in ROW_FIELDS:
        array = getattr(transitions, field)
        names += [field] if array.ndim == 1 else [f"{field}[{column}]" for column in range(array.shape[1])]
    return names


def pearson(matrix: ArrayLike) -> Array:
    """Pearson's correlation (D, D) of the columns of (n, D), in float64; 0 between constant columns and any other."""
    values = np.asarray(matrix)
    mean = values.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((values.shape[1],) * 2)
    for start in range(0, len(values), _CHUNK_ROWS):
        centred = values[start : start + _CHUNK_ROWS] - mean
        covariance += centred.T @ centred
    deviation = np.sqrt(np.diag(covariance))
    scale = np.where(_varies(values) & (deviation > 0), 1.0 / np.where(deviation > 0, deviation, 1.0), 0.0)
    r = np.clip(covariance * scale[:, None] * scale[None, :], -1.0, 1.0)
    np.fill_diagonal(r, 1.0)
    return r


def _ks_of_sorted(first: Array, second: Array) -> float:
    """The distance of two distribution functions is largest beside a jump of the smaller sample's, because the other
    one only rises between two such jumps: it is enough to look just before and just after each."""
    few, many = (first, second) if len(first) <= len(second) else (second, first)
    jumps = np.flatnonzero(np.concatenate([[True], few[1:] != few[:-1]]))
    values = few[jumps]
    few_before, few_after = jumps / len(few), np.append(jumps[1:], len(few)) / len(few)
    many_before = np.searchsorted(many, values, side="left") / len(many)
    many_after = np.searchsorted(many, values, side="right") / len(many)
    distance = max(np.abs(few_before - many_before).max(), np.abs(few_after - many_after).max())
    return float(1.0 - distance)


def _nearest(known: Array, asked: Array) -> Array:
    """Index of the nearest row of `known` for each row of `asked`, searched through all pairs with matrix products."""
    best = np.full(len(asked), np.inf, np.float32)
    index = np.zeros(len(asked), np.intp)
    for start in range(0, len(known), _CHUNK_ROWS):
        part = known[start : start + _CHUNK_ROWS]
        half_square = 0.5 * np.square(part).sum(axis=1)
        for first in range(0, len(asked), _QUERY_ROWS):
            rows = slice(first, first + _QUERY_ROWS)
            # Half of |a - b|^2 without its term |a|^2, which is the same for every b
            farness = half_square - asked[rows] @ part.T
            at = farness.argmin(axis=1)
            least = farness[np.arange(len(at)), at]
            closer = least < best[rows]
            best[rows] = np.where(closer, least, best[rows])
            index[rows] = np.where(closer, at + start, index[rows])
    return index


def matrices_of(real: Transitions, synthetic: Transitions) -> tuple[Array, Array]:
    """The rows of both as (n, D) and (m, D), in the coarser of the precisions they are stored in."""
    coarse = any(
        getattr(rows, field).dtype in (np.float16, np.float32) for rows in (real, synthetic) for field in ROW_FIELDS
    )
    return _matrix_of(real, coarse), _matrix_of(synthetic, coarse)


def _matrix_of(transitions: Transitions, coarse: bool) -> Array:
    widths = [array.shape[1] if array.ndim == 2 else 1 for array in map(transitions.arrays().__getitem__, ROW_FIELDS)]
    matrix = np.empty((len(transitions), sum(widths)), np.float32 if coarse else np.float64)
    start = 0
    for field, width in zip(ROW_FIELDS, widths, strict=True):
        matrix[:, start : start + width] = getattr(transitions, field).reshape(len(transitions), width)
        start += width
    return matrix


def _at_most(transitions: Transitions, rows: int, seed: int) -> Transitions:
    if rows < 1:
        raise DataError(f"max_rows must be at least 1, got {rows}")
    return transitions if len(transitions) <= rows else transitions.subsample(rows / len(transitions), seed)


def _check_columns(real: Transitions, synthetic: Transitions) -> None:
    for field in ("observation", "action"):
        here, there = getattr(real, field).shape[1:], getattr(synthetic, field).shape[1:]
        if here != there:
            raise DataError(f"cannot compare: {field} has row shape {there} in the synthetic data, {here} in the real")


def _alike(first: Array, second: Array) -> tuple[Array, Array]:
    coarse = any(array.dtype.kind == "f" and array.dtype.itemsize <= 4 for array in (first, second))
    dtype = np.float32 if coarse else np.float64
    return first.astype(dtype, copy=False), second.astype(dtype, copy=False)


def _sample(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name} has shape {array.shape}: expected one column with at least one row")
    if np.isnan(array).any():
        raise DataError(f"{name} holds NaN: expected numbers")
    return array


def _matrices(real: ArrayLike, synthetic: ArrayLike) -> tuple[Array, Array]:
    first, second = np.asarray(real), np.asarray(synthetic)
    for name, array in (("real", first), ("synthetic", second)):
        if array.ndim != 2 or 0 in array.shape:
            raise DataError(f"{name} has shape {array.shape}: expected (rows, columns), at least one of each")
    if first.shape[1] != second.shape[1]:
        raise DataError(f"real has {first.shape[1]} columns, synthetic {second.shape[1]}: expected the same")
    return first, second


def _varies(matrix: Array) -> Array:
    varies: Array = matrix.min(axis=0) != matrix.max(axis=0)
    return varies
