"""Compare the distributions of columns, and the correlations of columns, in real and in synthetic rows.

Every measure is a pure function. Its docstring gives the range and the best value. Rows are compared as a matrix with
the columns of the paper: observation, action, reward, next observation, and the terminal flag as 0 or 1. Extra columns
follow. `ks_similarity` and `correlation` are defined like KSComplement and CorrelationSimilarity of SDMetrics.

`compare` computes all measures that need nothing but the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from synther.assess.bounds import actions_outside
from synther.compute import one_thread
from synther.data.checks import check_kind
from synther.data.transitions import Transitions
from synther.errors import DataError
from synther.schema import checked

Array = NDArray[Any]

MAX_ROWS = 1_000_000
"""Largest number of rows of each side that `compare` uses. More rows do not change the third digit of any figure."""

_CHUNK_ROWS = 1 << 14
"""Number of rows in a chunk, so that a chunk fits into the cache of a core."""

_MOMENT_ROWS = 100_000
"""Largest number of rows from which `correlation_variance` computes moments."""

_LARGEST = float(np.finfo(np.float32).max)


def ks_similarity(real: ArrayLike, synthetic: ArrayLike) -> float:
    """Return 1 minus the two-sample Kolmogorov-Smirnov statistic of two columns (n,) and (m,).

    Range 0 (no overlap) to 1 (the same distribution); higher is better. If one column is float32, both are compared as
    float32. Otherwise a column that is stored with less precision would look like another distribution.
    """
    first, second = _same_precision(_sample("real", real), _sample("synthetic", synthetic))
    return _ks_of_sorted(np.sort(first), np.sort(second))


def marginal(real: ArrayLike, synthetic: ArrayLike) -> tuple[Array, float]:
    """Return the `ks_similarity` of every column of two matrices (n, D) and (m, D), and the mean over columns.

    Range 0 to 1; higher is better.
    """
    first, second = _matrices(real, synthetic)
    # Make columns contiguous first. Sorting strided columns would cause a cache miss for every value.
    pairs = zip(np.ascontiguousarray(first.T), np.ascontiguousarray(second.T), strict=True)
    per_column = np.array([ks_similarity(a, b) for a, b in pairs])
    return per_column, float(per_column.mean())


def correlation(real: ArrayLike, synthetic: ArrayLike) -> float:
    """Return the mean over pairs of columns of 1 - |r_real - r_synthetic| / 2, with Pearson's r.

    Range 0 (every pair changes from +1 to -1) to 1 (the same correlations); higher is better. Columns that are constant
    on one side have no correlation and are left out. NaN if fewer than two columns remain.
    """
    first, second = _matrices(real, synthetic)
    varies = varying(first) & varying(second)
    return pair_similarity(pearson(first), pearson(second), varies)


def pair_similarity(first: Array, second: Array, varies: Array) -> float:
    """Return `correlation` from two matrices of Pearson's r (D, D), over the columns that `varies` marks."""
    chosen = np.ix_(varies, varies)
    difference = np.abs(first[chosen] - second[chosen])
    pairs = difference[np.triu_indices_from(difference, k=1)]
    return float(np.mean(1.0 - pairs / 2.0)) if len(pairs) else math.nan


def correlation_variance(matrix: ArrayLike, r: Array, episodes: Array | None = None) -> Array:
    """Return the sampling variance (D, D) of Pearson's `r` between the columns of (n, D), for any distribution.

    The delta method on second and fourth moments is used. The moments are computed from at most 100,000 rows at equal
    distances. `episodes` (n,) are the episode numbers of the rows. With them, only rows of different episodes are
    treated as independent.
    """
    values = np.asarray(matrix)
    step = -(-len(values) // _MOMENT_ROWS)
    few = values[::step].astype(np.float64)
    low, high = few.min(axis=0), few.max(axis=0)
    few = (few - (low / 2 + high / 2)) / np.where(high > low, high / 2 - low / 2, 1.0)
    few -= few.mean(axis=0)
    std = np.sqrt(np.square(few).mean(axis=0))
    scaled = torch.from_numpy(few / np.where(std > 0, std, 1.0))
    squares = scaled.square()
    with one_thread():
        both = (torch.mm(squares.T, squares) / len(few)).numpy()
        cubes = (torch.mm((squares * scaled).T, scaled) / len(few)).numpy()
    fourth = np.diag(both)
    spread = both * (1 + r**2 / 2) + r**2 / 4 * (fourth[:, None] + fourth) - r * (cubes + cubes.T)
    variance: Array = np.maximum(spread, 0.0) / len(values)
    if episodes is None:
        return variance
    order = np.argsort(episodes[::step], kind="stable")
    starts = np.flatnonzero(np.diff(episodes[::step][order])) + 1
    between = np.zeros_like(variance)
    for part in np.split(scaled.numpy()[order], starts):
        squared = np.square(part).sum(axis=0)
        between += np.square(part.T @ part - r / 2 * (squared[:, None] + squared))
    return np.maximum(variance, between / len(few) ** 2)


def worst_pair(first: Array, second: Array, variance: Array, varies: Array) -> tuple[float, tuple[int, int] | None]:
    """Return the largest difference of two correlation matrices (D, D) that chance cannot explain, and its pair of
    columns.

    Range 0 (best) to 2. A difference only counts if it exceeds 1.5 + sqrt(2 ln pairs) standard errors. Chance hardly
    ever causes that in any pair. If no difference counts, the result is (0, None). Only columns that `varies` marks
    take part.
    """
    one, other = np.triu_indices(len(first), k=1)
    kept = varies[one] & varies[other]
    one, other = one[kept], other[kept]
    if not len(one):
        return 0.0, None
    gaps = np.abs(first[one, other] - second[one, other])
    least = (1.5 + math.sqrt(2 * math.log(len(one)))) * np.sqrt(variance[one, other])
    gaps = np.where(gaps > least, gaps, 0.0)
    at = int(gaps.argmax())
    return (float(gaps[at]), (int(one[at]), int(other[at]))) if gaps[at] > 0 else (0.0, None)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

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

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON. A figure that does not exist is None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Comparison:
        """Return the comparison that `to_json` has saved. Raise `FormatError` if a figure is missing or malformed."""
        saved = {field.name: entry.get(field.name) for field in fields(cls)}
        correlation = checked(saved.pop("correlation"), float | None, "correlation")
        comparison: Comparison = checked({**saved, "correlation": correlation or 0.0}, cls, "comparison")
        return replace(comparison, correlation=math.nan) if correlation is None else comparison

    def table(self) -> list[tuple[str, str]]:
        """Return pairs of a name and a figure, for printing."""
        rows = [
            ("marginal", f"{self.marginal:.4f}"),
            ("worst column", f"{self.worst_value:.4f} ({self.worst_column})"),
            ("correlation", "-" if math.isnan(self.correlation) else f"{self.correlation:.4f}"),
        ]
        rates = f"{self.terminal_rate_synthetic:.3%} (real {self.terminal_rate_real:.3%})"
        rows += [("terminals", rates), ("actions out of bounds", f"{self.actions_outside:.2%}")]
        return rows


def compare(real: Transitions, synthetic: Transitions, *, max_rows: int = MAX_ROWS, seed: int = 0) -> Comparison:
    """Return all measures that need nothing but the rows. At most `max_rows` rows of each side are used."""
    check_columns(real, synthetic)
    first, second = at_most(real, max_rows, seed), at_most(synthetic, max_rows, seed)
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


def column_names(transitions: Transitions) -> list[str]:
    """Return the name of each column, such as `observation[0]`, `action[1]` (`action` if discrete) or `reward`."""
    names: list[str] = []
    for field, array in transitions.modelled().items():
        names += [field] if array.ndim == 1 else [f"{field}[{column}]" for column in range(array.shape[1])]
    return names


def pearson(matrix: ArrayLike) -> Array:
    """Return Pearson's correlation (D, D) of the columns of (n, D), in float64. Constant columns have correlation 0."""
    values = np.asarray(matrix)
    low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    middle, reach = low / 2 + high / 2, high / 2 - low / 2  # no overflow: halved first
    scale = 1.0 / np.where(reach > 0, reach, 1.0)
    chunks = [slice(start, start + _CHUNK_ROWS) for start in range(0, len(values), _CHUNK_ROWS)]
    mean = sum(((values[rows] - middle) * scale).sum(axis=0) for rows in chunks) / len(values)
    covariance = np.zeros((values.shape[1],) * 2)
    with one_thread():
        for rows in chunks:
            centred = torch.from_numpy((values[rows] - middle) * scale - mean)
            covariance += torch.mm(centred.T, centred).numpy()  # NumPy's product takes 50 times as long on two cores
    std = np.sqrt(np.diag(covariance))
    norm = np.where(reach > 0, 1.0 / np.where(std > 0, std, 1.0), 0.0)
    r = np.clip(covariance * norm[:, None] * norm[None, :], -1.0, 1.0)
    np.fill_diagonal(r, 1.0)
    return r


def _ks_of_sorted(first: Array, second: Array) -> float:
    """Return 1 minus the Kolmogorov-Smirnov statistic of two sorted samples.

    The distance of the two distribution functions is only computed just before and just after each jump of the smaller
    sample. Between two of its jumps only the other function rises, so the distance is largest beside a jump.
    """
    few, many = (first, second) if len(first) <= len(second) else (second, first)
    jumps = np.flatnonzero(np.concatenate([[True], few[1:] != few[:-1]]))
    values = few[jumps]
    few_before, few_after = jumps / len(few), np.append(jumps[1:], len(few)) / len(few)
    before = np.searchsorted(many, values, side="left")
    after = before.copy()
    tied = np.flatnonzero(many[np.minimum(before, len(many) - 1)] == values)  # else both searches agree
    after[tied] = np.searchsorted(many, values[tied], side="right")
    distance = max(np.abs(few_before - before / len(many)).max(), np.abs(few_after - after / len(many)).max())
    return float(1.0 - distance)


def matrices_of(*sides: Transitions) -> tuple[Array, ...]:
    """Return the rows of each side as a matrix (n, D), with every field rounded to the lowest precision of all sides.

    All matrices are float32 if that holds every field exactly, else float64. For example, a position of 1e9 in float64
    would lose its steps in float32, even if the rewards are float32.
    """
    coarse, float32_is_enough = set(), True
    for field in sides[0].modelled():
        arrays = [rows.arrays()[field] for rows in sides]
        if any(array.dtype in (np.float16, np.float32) for array in arrays):
            coarse.add(field)
        elif not all(map(_float32_holds, arrays)):
            float32_is_enough = False
    fields, dtype = list(sides[0].modelled()), np.float32 if float32_is_enough else np.float64
    return tuple(_matrix_of(rows, fields, coarse, dtype) for rows in sides)


def _float32_holds(array: Array) -> bool:
    """Return whether float32 holds an array exactly. That is assumed for whole numbers up to 2**24, not for floats."""
    if array.dtype.kind == "f":
        return False
    return array.dtype.itemsize <= 2 or max(-int(array.min()), int(array.max())) <= 2**24


def _matrix_of(
    transitions: Transitions, fields: Sequence[str], coarse: set[str], dtype: type[np.floating[Any]]
) -> Array:
    arrays = transitions.arrays()
    widths = [arrays[field].shape[1] if arrays[field].ndim == 2 else 1 for field in fields]
    matrix = np.empty((len(transitions), sum(widths)), dtype)
    start = 0
    for field, width in zip(fields, widths, strict=True):
        values = arrays[field].reshape(len(transitions), width)
        if field in coarse:
            if values.dtype == np.float64:  # clip values that are too large for float32
                values = np.clip(values, -_LARGEST, _LARGEST)
            values = values.astype(np.float32, copy=False)
        matrix[:, start : start + width] = values
        start += width
    return matrix


def check_max_rows(rows: int) -> None:
    if rows < 1:
        raise DataError(f"max_rows must be at least 1, got {rows}")


def at_most(transitions: Transitions, rows: int, seed: int = 0) -> Transitions:
    """Return the rows, or a random sample of `rows` of them if there are more."""
    check_max_rows(rows)
    return transitions if len(transitions) <= rows else transitions.subsample(rows / len(transitions), seed)


def check_columns(real: Transitions, other: Transitions, name: str = "synthetic") -> None:
    """Raise `DataError` if two sets of rows do not have the same columns."""
    check_kind(real)
    check_kind(other)
    for field in ("observation", "action"):
        expected, shape = getattr(real, field).shape[1:], getattr(other, field).shape[1:]
        if expected != shape:
            raise DataError(
                f"cannot compare: {field} has row shape {shape} in the {name} data, but {expected} in the real data"
            )
    expected, shapes = ({key: array.shape[1:] for key, array in rows.extra.items()} for rows in (real, other))
    if expected != shapes:
        raise DataError(
            f"cannot compare: the {name} data has the extra columns {', '.join(shapes) or 'none'}, but the real data "
            f"has {', '.join(expected) or 'none'}. Prepare both in the same way (n_step_rows, with_next_actions; "
            "--n-step, --next-actions), or remove extra columns with without_extra()"
        )


def _same_precision(first: Array, second: Array) -> tuple[Array, Array]:
    """Convert both columns to float32 if one of them is float32 or float16, else to float64."""
    coarse = any(array.dtype.kind == "f" and array.dtype.itemsize <= 4 for array in (first, second))
    dtype = np.float32 if coarse else np.float64
    return first.astype(dtype, copy=False), second.astype(dtype, copy=False)


def _sample(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name} has shape {array.shape}: expected one column (n,) with at least one row")
    if np.isnan(array).any():
        raise DataError(f"{name} contains NaN: remove or replace these values")
    return array


def _matrices(real: ArrayLike, synthetic: ArrayLike) -> tuple[Array, Array]:
    first, second = np.asarray(real), np.asarray(synthetic)
    for name, array in (("real", first), ("synthetic", second)):
        if array.ndim != 2 or 0 in array.shape:
            raise DataError(f"{name} has shape {array.shape}: expected (rows, columns) with at least one of each")
    if first.shape[1] != second.shape[1]:
        raise DataError(
            f"real has {first.shape[1]} columns and synthetic has {second.shape[1]}: expected the same number"
        )
    return first, second


def varying(matrix: Array) -> Array:
    """Return which columns of (n, D) are not constant. (D,) booleans"""
    varies: Array = matrix.min(axis=0) != matrix.max(axis=0)
    return varies
