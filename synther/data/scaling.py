"""`Scaler`: scales the matrix to the range that a diffusion model expects, and back.

Every column is scaled separately, by one of these scalings:

    none       unchanged
    standard   mean 0, std 1
    minmax     lowest value -1, highest value +1
    quantile   to a standard normal, through the column's quantiles
    blend      halfway between standard and quantile: peaks are widened, and no slope is below one half

If requested, outcomes are replaced by the residuals of a regression on the rest of the row (residuals.py), and numbers
of an observation by their difference from the mean in their category (grouping.py).

Read `Scaler.fit`, `Scaler.transform` and `Unscaler.__call__`, in this order.

NOTE[paper]: the reference divides by the std + 1e-5. Here it is the true std, since constant columns never
reach the matrix, so that a column of tiny variance is not squashed into nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.grouping import Grouping, Groups, Regrouper
from synther.data.moments import Moments, RowSample
from synther.data.quantiles import Curve, Lines, row_index
from synther.data.residuals import Regression, Residuals, Restorer
from synther.data.transitions import ROW_FIELDS
from synther.errors import ConfigError, DataError, FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.layout import Layout

Array = NDArray[Any]
Matrix = NDArray[np.float64]

SCALINGS = ("none", "standard", "minmax", "quantile", "blend")
_FIXED = ("none", "minmax")  # columns with these scalings are neither replaced by residuals nor grouped
_BLOCK = 1 << 14  # rows that are processed at a time
_SAMPLED = 1 << 26  # maximum number of values in the sample that quantiles and regressions are fitted on
SAMPLED_ROWS = 1 << 18  # maximum number of rows in this sample
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Scaler:
    """A fitted scaling of all columns, in four steps.

    1. scaled = (raw - shift) / scale for every column.
    2. If there is a regression, outcomes are replaced by their residuals.
    3. If there are groups, numbers are replaced by their difference from the mean in their category.
    4. Quantile and blend columns are transformed by their curves.
    """

    kinds: tuple[str, ...]
    """The scaling of each column, one of `SCALINGS`."""
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    curves: tuple[tuple[int, Curve], ...] = ()
    """The number of each quantile or blend column, and its curve."""
    residuals: Residuals | None = None
    groups: Groups | None = None

    @classmethod
    def fit(
        cls,
        matrix: Array | Iterable[Array],
        kinds: Sequence[str],
        names: Sequence[str] | None = None,
        twins: Sequence[int] | None = None,
        regression: Regression | None = None,
        grouping: Grouping | None = None,
    ) -> Scaler:
        """Fit on a matrix (N, D), or on its chunks, which are read once. `kinds` are the scalings of the D columns,
        `names` their names for error texts.

        `twins` (D,) is for each column the number of the column that holds the same quantity before or after a step, or
        its own number. A constant column is scaled by the std of its twin. With a `regression`, outcomes with the
        scaling standard, blend or quantile are replaced by their residuals, and with a `grouping` the given columns may
        be grouped. Quantiles, regressions and groups are fitted on a random sample of the rows, everything else on all
        rows.
        """
        kinds = tuple(kinds)
        _check_kinds(kinds)
        curved = [column for column, kind in enumerate(kinds) if kind in ("quantile", "blend")]
        if regression is not None:
            regression = regression.among([i for i, kind in enumerate(kinds) if kind not in _FIXED])
        regressed = [] if regression is None else sorted({*regression.given, *regression.outcomes})
        sampled = sorted({*curved, *regressed})
        rows = max(1, min(SAMPLED_ROWS, _SAMPLED // max(len(sampled), 1)))
        moments, sample = Moments(len(kinds)), RowSample(0, rows)
        for chunk in [matrix] if isinstance(matrix, np.ndarray) else matrix:
            if chunk.ndim != 2 or chunk.shape[1] != len(kinds):
                raise DataError(f"matrix has shape {chunk.shape}: expected (rows, {len(kinds)})")
            for start in range(0, len(chunk), _BLOCK):
                block = chunk[start : start + _BLOCK].astype(np.float64, copy=False)
                moments.add(block)
                if sampled:
                    sample.add(block[:, sampled])
        if not moments.count:
            raise DataError("there are no rows to fit a scaling on: expected at least one")
        names = names or [str(column) for column in range(len(kinds))]
        standard = ["standard" if kind == "quantile" and i in regressed else kind for i, kind in enumerate(kinds)]
        shift, scale = _affine(tuple(standard), moments, names, list(range(len(kinds)) if twins is None else twins))
        if not sampled:
            return cls(kinds, tuple(shift.tolist()), tuple(scale.tolist()))
        drawn = (sample.rows - shift[sampled]) / scale[sampled]
        ends = [(end[sampled] - shift[sampled]) / scale[sampled] for end in (moments.low, moments.high)]
        varies = [column for column in sampled if moments.low[column] < moments.high[column]]
        residuals = None if regression is None else regression.fit(drawn, sampled, varies, shift, scale)
        at = {column: place for place, column in enumerate(sampled)}
        replaced, groups = list[int](), None
        if residuals is not None:
            replaced += residuals.replaced
            residuals.moved(sampled).take_out(drawn)
        if grouping is not None and regression is not None:  # the sample then has all given columns, with std 1
            numbers = [column for column in grouping.numbers if kinds[column] not in _FIXED]
            groups = replace(grouping, numbers=numbers).fit(drawn, at, () if residuals is None else residuals.outcomes)
        if groups is not None:
            replaced += groups.columns
            groups.moved(at).take_out(drawn)
        places = [at[column] for column in replaced]
        ends[0][places], ends[1][places] = drawn[:, places].min(0), drawn[:, places].max(0)
        curves = []
        for column in curved:
            place = at[column]
            if moments.low[column] < moments.high[column]:
                curve = Curve.fit(drawn[:, place], ends[0][place], ends[1][place])
                if len(curve.values) < 2 and column in replaced:
                    continue  # the regression or group explains it exactly
                if len(curve.values) < 2:
                    raise _unscalable(names, column, kinds, moments)
                curves.append((column, curve.halfway() if kinds[column] == "blend" else curve))
        return cls(kinds, tuple(shift.tolist()), tuple(scale.tolist()), tuple(curves), residuals, groups)

    @cached_property
    def _shift(self) -> Matrix:
        return np.array(self.shift, np.float64)

    @cached_property
    def _scale(self) -> Matrix:
        return np.array(self.scale, np.float64)

    @cached_property
    def _to_scores(self) -> Lines:
        return Lines([curve.to_scores for _, curve in self.curves], _CPU)

    def transform(self, matrix: Array) -> Matrix:
        """Scale raw rows (N, D)."""
        self._check_width(matrix)
        scaled = np.subtract(matrix, self._shift, dtype=np.float64)
        scaled /= self._scale
        if self.residuals is not None:
            self.residuals.take_out(scaled)
        if self.groups is not None:
            self.groups.take_out(scaled)
        if self.curves:
            curved = [column for column, _ in self.curves]
            for start in range(0, len(scaled), _BLOCK):
                part = slice(start, start + _BLOCK)
                columns = torch.from_numpy(np.ascontiguousarray(scaled[part, curved].T))
                scaled[part, curved] = self._to_scores.follow(columns).numpy().T
        return scaled

    def inverse(self, matrix: Array) -> Matrix:
        """Return the raw rows for scaled rows (N, D)."""
        self._check_width(matrix)
        columns = torch.from_numpy(np.array(matrix.T, np.float64, order="C"))
        return np.asarray(self.unscaler(_CPU)(columns).numpy().T)

    def unscaler(self, device: torch.device) -> Unscaler:
        """Return the inverse on a device. It is created once and kept."""
        if device not in self._unscalers:
            self._unscalers[device] = Unscaler(self, device)
        return self._unscalers[device]

    @cached_property
    def _unscalers(self) -> dict[torch.device, Unscaler]:
        return {}

    def log_slope(self, matrix: Array) -> Matrix:
        """Return the sum over columns of log |d scaled / d raw| (N,) at raw rows (N, D). Adding it to the
        log-likelihood of scaled rows gives the log-likelihood of raw rows."""
        self._check_width(matrix)
        total = np.full(len(matrix), -np.log(self._scale).sum())
        affine = np.subtract(matrix, self._shift, dtype=np.float64) / self._scale
        if self.residuals is not None:  # subtracting a function of other columns keeps the volume, but scaling does not
            total -= self.residuals.log_scales(affine)
            self.residuals.take_out(affine)
        if self.groups is not None:
            total -= self.groups.log_scales(affine)
            self.groups.take_out(affine)
        for column, curve in self.curves:
            total += curve.log_slope(affine[:, column])
        return total

    def _check_width(self, matrix: Array) -> None:
        if matrix.ndim != 2 or matrix.shape[1] != len(self.kinds):
            raise DataError(f"matrix has shape {matrix.shape}: expected (rows, {len(self.kinds)})")

    def to_json(self) -> dict[str, Any]:
        return {
            "kinds": list(self.kinds),
            "shift": list(self.shift),
            "scale": list(self.scale),
            "curves": {str(column): curve.to_json() for column, curve in self.curves},
            "residuals": None if self.residuals is None else self.residuals.to_json(),
            **({} if self.groups is None else {"groups": self.groups.to_json()}),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Scaler:
        stored = checked(entry, _Entry, "scaler")
        width = len(stored["kinds"])
        columns = {str(column): column for column in range(width)}
        for name in ("shift", "scale"):
            if len(finite(stored[name], f"scaler.{name}")) != width or (name == "scale" and 0 in stored[name]):
                raise FormatError(f"scaler.{name}: expected {width} numbers, and no scale of 0")
        if not stored["curves"].keys() <= columns.keys():
            raise FormatError(
                f"scaler.curves: expected columns from 0 to {width - 1}, found {', '.join(stored['curves'])}"
            )
        curves = tuple((columns[column], Curve.from_json(curve)) for column, curve in stored["curves"].items())
        residuals = None if stored["residuals"] is None else Residuals.from_json(stored["residuals"])
        groups = Groups.from_json(stored["groups"], width) if "groups" in stored else None
        return cls(stored["kinds"], stored["shift"], stored["scale"], curves, residuals, groups)


class Unscaler:
    """The inverse of a `Scaler` on a device, for rows that are stored as columns (D, N)."""

    def __init__(self, scaler: Scaler, device: torch.device) -> None:
        self._shift, self._scale = (
            torch.tensor(each, dtype=torch.float64, device=device)[:, None] for each in (scaler.shift, scaler.scale)
        )
        curved = [column for column, _ in scaler.curves]
        self._curved = row_index(curved, device)
        self._lines = Lines([curve.to_values for _, curve in scaler.curves], device) if curved else None
        self._regroup = None if scaler.groups is None else Regrouper(scaler.groups, device)
        self._restore = None if scaler.residuals is None else Restorer(scaler.residuals, device)
        self._free = row_index(() if scaler.residuals is None else scaler.residuals.free, device)

    def __call__(self, columns: Tensor, settle: Callable[[Tensor], None] | None = None) -> Tensor:
        """Return raw columns (D, N) for scaled ones. `columns` is overwritten.

        `settle` changes raw columns in place before outcomes are computed from them, for example by rounding them. The
        returned columns themselves are not changed by it.
        """
        if self._lines is not None:
            columns[self._curved] = self._lines.follow(columns[self._curved])
        if self._regroup is not None:
            self._regroup(columns)
        if self._restore is not None:
            if settle is None:
                self._restore(columns)
            else:
                settled, free = columns * self._scale + self._shift, self._free
                settle(settled)
                generated = columns[free].clone()
                columns[free] = (settled[free] - self._shift[free]) / self._scale[free]
                self._restore(columns)
                columns[free] = generated
        return columns.mul_(self._scale).add_(self._shift)


class _Entry(TypedDict):
    kinds: tuple[str, ...]
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    curves: dict[str, Any]
    residuals: Any
    groups: NotRequired[Any]


def _check_kinds(kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in SCALINGS:
            raise ConfigError(f"scaling: expected one of {', '.join(SCALINGS)}, got {kind!r}")


def _affine(kinds: tuple[str, ...], moments: Moments, names: Sequence[str], twins: list[int]) -> tuple[Matrix, Matrix]:
    """Return shift and scale of every column.

    The scale of a constant column is the std of its twin. If the twin is constant too, it is the distance between them,
    or 1 if they are equal. So the scale is never 0.
    """
    kind = np.array(kinds, dtype=object)
    low, high = moments.low, moments.high
    with np.errstate(over="ignore", invalid="ignore"):
        half_span = high / 2 - low / 2
        # A power of two above the span: dividing by it is exact, and it keeps the slopes of a curve in range.
        unit = np.ldexp(1.0, np.clip(np.frexp(half_span)[1] + 1, -1000, 1000))
        standard = (kind == "standard") | (kind == "blend")
        shift = np.select([standard, kind == "minmax"], [moments.mean, low / 2 + high / 2], default=0.0)
        scale = np.select(
            [standard, kind == "minmax", kind == "quantile"],
            [moments.std, half_span, unit],
            default=1.0,
        )
        flat = (kind != "none") & (low == high)
        apart = np.abs(low[twins] - low)
        other = np.where(moments.std[twins] > 0, moments.std[twins], np.where(apart > 0, apart, 1.0))
        shift, scale = np.where(flat, low, shift), np.where(flat, other, scale)
        reached = np.isfinite([low - shift, high - shift, scale]).all(0) & (scale > 0)
    for column in np.flatnonzero(~reached & (kind != "none")).tolist():
        raise _unscalable(names, column, kinds, moments)
    return shift, scale


def _unscalable(names: Sequence[str], column: int, kinds: Sequence[str], moments: Moments) -> DataError:
    return DataError(
        f"{names[column]} has values from {moments.low[column]:g} to {moments.high[column]:g}, which the scaling "
        f"{kinds[column]} cannot handle in float64: multiply this column by a constant first"
    )


def resolve_kinds(layout: Layout, scaling: str | Mapping[str, str]) -> tuple[str, ...]:
    """Return one scaling for each matrix column of `layout`. Columns that are never scaled get "none".

    `scaling` is one scaling for all columns, or a dict. The keys of a dict are names of columns ("observation[3]"),
    fields ("reward") or "default", and are looked up in this order. Without a default, all other columns get
    "standard". Circular observations and actions get "quantile" instead of "blend", because the density of a circle
    does not fall off at the ends of its range, and a network would make it do so.
    """
    chosen = {"default": scaling} if isinstance(scaling, str) else {"default": "standard", **scaling}
    _check_kinds(chosen.values())
    known = {"default", *ROW_FIELDS, *layout.fields, *layout.names, *layout.source_names}
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f"scaling: unknown name {name!r}: expected default, {', '.join(ROW_FIELDS)} "
                f"or a column such as {(layout.source_names or ROW_FIELDS)[0]}"
            )
    kinds = [
        chosen.get(name, chosen.get(field, chosen["default"])) if scaled else "none"
        for name, field, scaled in zip(layout.names, layout.fields, layout.scaled_columns, strict=True)
    ]
    for column in layout.circles:
        kinds[column] = "quantile" if kinds[column] == "blend" else kinds[column]
    return tuple(kinds)
