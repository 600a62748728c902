"""Find a formula for the reward in the rest of a row, such as a quadratic cost, a distance, or price times amount.

A linear regression does not explain such a reward, and a network learns it only approximately. The formula is a
weighted sum of terms: columns, cosine and sine of circular columns, products of two of these, lengths of neighbouring
columns (as one vector), distances between two such vectors, and squares of angles. Terms are chosen greedily, the one
that explains most first. A formula is used if it explains nearly all that a linear regression leaves. Then the matrix
holds the residual of the formula instead of the reward, and the formula is evaluated on each generated row. So
generated rewards fit their rows.

A formula that explains only a part is worse than none, because the network would have to undo its nonlinearity.

Read `Formula` and `Term`, then `with_formula`, and `_found` for the search.

NOTE[paper]: the reference generates the reward like any other column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.identities import FIELDS, written_sum
from synther.data.lines import ROWS_PER_WEIGHT
from synther.data.numbers import Continuous, Spiked
from synther.data.transitions import PAIR, Transitions
from synther.data.values import Derived
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.kind import Array
    from synther.data.layout import Layout

LEAVES = 0.04
"""A formula may leave at most this share of the variance that a linear regression leaves, in held-out rows."""
EXACT = 1e-3
"""For a reward with spikes, a formula must be this exact in 999 of 1,000 rows, in stds of the reward."""
ALL_OFF = 2e-5
"""If no row is off by more than this, in stds of the reward, the formula is the reward. The matrix then has no column
for it."""
_DIGITS = 3, 6  # significant digits to which weights are rounded: the first that leaves the formula exact in all rows
_NO_MORE = 1e-6  # a regression that leaves at most this share of the reward's variance needs no formula
_DEPENDENT = 1e-5  # a term follows from others if they leave at most this share of its spread
_CHUNK = 1 << 16
_MOST_ROWS = 1 << 15  # maximum number of rows that a formula is fitted on
_TRIED = 1 << 12  # maximum number of rows in which its terms are chosen
_TOGETHER = 64  # number of terms that are computed at a time, so that they stay in the cache
_WIDEST = 256  # maximum number of inputs for which a formula is searched
_MOST_INPUTS = 32  # maximum number of columns of a field that terms are made of
_MOST_TERMS = 64  # maximum number of nonlinear terms
_ADDS = 0.01  # minimum share that a term has to explain of the variance that earlier terms leave
_LOSES = 1e-3  # terms are dropped if the residual variance grows by less than this share without them
_ERROR, _STEADY = 0.01, 0.1  # if each column is off by 0.01 of its std, the reward may be off by 0.1 of its std
_LONGEST = 3  # maximum number of neighbouring columns of a length
_WAVES: tuple[Literal["cos", "sin"], ...] = ("cos", "sin")
_MOST_VALUES = 32  # an action with more unordered values is a single input


@dataclass(frozen=True)
class Input:
    """A column of a row that a formula uses."""

    field: str
    column: int
    value: float | None = None
    """If given, the input is 1 in rows where the column has this value, else 0. If None, it is the column itself."""
    wave: Literal["", "cos", "sin"] = ""
    """If given, the input is cosine or sine of the column, which is circular."""
    period: float = 0.0
    """Period of a circular column."""

    def text(self, name: str) -> str:
        """Return the input as text, where `name` is the name of the column."""
        if self.wave:
            angle = name if self.period == 2 * math.pi else f"2π {name} / {self.period:g}"
            return f"{self.wave}({angle})"
        return name if self.value is None else f"[{name} = {self.value:g}]"

    @property
    def is_number(self) -> bool:
        """Whether the input is the column itself."""
        return self.value is None and not self.wave


@dataclass(frozen=True)
class Term:
    """A figure of some inputs, such as their product, minus the same figure of other inputs if `minus` is given.

    The figures are: a column; the product of two columns; the length of a vector of columns; the distance between two
    vectors (the first and the second half of the inputs); and the square of the angle with this cosine and sine.
    Columns and products are computed from inputs minus their means.
    """

    name: Literal["column", "product", "length", "distance", "angle"]
    inputs: tuple[int, ...]
    minus: tuple[int, ...] = ()

    def text(self, names: Sequence[str], mean: Sequence[float]) -> str:
        """Return the term as text, for inputs with these names and means."""

        def about(place: int) -> str:
            return f"({names[place]} - {mean[place]:.6g})" if mean[place] else names[place]

        def written(places: Sequence[int]) -> str:
            plain, half = [names[place] for place in places], len(places) // 2
            if self.name == "column":
                return about(places[0])
            if self.name == "product":
                return f"{about(places[0])}²" if places[0] == places[1] else " ".join(map(about, places))
            if self.name == "angle":
                return f"angle({', '.join(plain)})²"
            if self.name == "length":
                return f"|{', '.join(plain)}|"
            return f"|{', '.join(plain[:half])} - {', '.join(plain[half:])}|"

        return f"({written(self.inputs)} - {written(self.minus)})" if self.minus else written(self.inputs)

    def of(self, inputs: Sequence[Tensor] | Tensor, mean: Sequence[float]) -> Tensor:
        """Return the term in rows with these `inputs` (C, N), where the inputs have these means. (N,)

        This creates no tensor from Python numbers, because on a GPU it runs inside a captured CUDA graph.
        """
        found = _figure(self.name, self.inputs, inputs, mean)
        return found - _figure(self.name, self.minus, inputs, mean) if self.minus else found


def _figure(name: str, places: Any, inputs: Sequence[Tensor] | Tensor, mean: Sequence[float] | Tensor) -> Tensor:
    """Return the figure `name` of the inputs at these `places`.

    A place may also be a tensor of T places. Then T figures are computed together.
    """
    first = inputs[places[0]]
    if name == "column":
        return first - mean[places[0]]
    if name == "product":
        return (first - mean[places[0]]) * (inputs[places[1]] - mean[places[1]])
    if name == "angle":
        return torch.atan2(inputs[places[1]], first).square()
    vector = [inputs[place] for place in places]
    if name == "distance":
        half = len(places) // 2
        vector = [one - other for one, other in zip(vector[:half], vector[half:], strict=True)]
    return torch.stack(vector).square().sum(0).sqrt()


def _values_of(terms: Sequence[Term], raw: Tensor, mean: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return the values of all terms in rows with the inputs `raw` (C, N), which have these means. (T, N)

    There may be thousands of terms, so terms of the same shape are computed together.
    """
    found, means = raw.new_empty((len(terms), raw.shape[1]), dtype=dtype), raw.new_tensor(mean)[:, None]
    shapes: dict[tuple[str, int, int], list[int]] = {}
    for place, term in enumerate(terms):
        shapes.setdefault((term.name, len(term.inputs), len(term.minus)), []).append(place)
    for (name, _, minus), places in shapes.items():
        for start in range(0, len(places), _TOGETHER):
            batch = places[start : start + _TOGETHER]
            values = _figure(name, torch.tensor([terms[place].inputs for place in batch]).T, raw, means)
            if minus:
                values -= _figure(name, torch.tensor([terms[place].minus for place in batch]).T, raw, means)
            found[batch] = values.to(dtype)
    return found


@dataclass(frozen=True)
class Formula:
    """A formula for the reward: `level` plus a weighted sum of terms."""

    inputs: tuple[Input, ...]
    mean: tuple[float, ...]
    """Mean of each input, subtracted in columns and products."""
    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    """Weight of each term."""
    level: float
    """Constant of the formula."""

    def __call__(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Compute the reward of rows with these fields, (N, W) each, in float64. (N,)"""
        inputs = [_values(one, fields) for one in self.inputs]
        reward = torch.full_like(inputs[0], self.level)
        for term, weight in zip(self.terms, self.weights, strict=True):
            reward += weight * term.of(inputs, self.mean)
        return reward

    @property
    def is_linear(self) -> bool:
        """Whether the formula is a weighted sum of columns."""
        return all(term.name == "column" for term in self.terms)

    def text(self, name: Callable[[str, int], str]) -> str:
        """Return the formula as text. `name` is a function from field and column to the name of the column."""
        names = [one.text(name(one.field, one.column)) for one in self.inputs]
        parts = zip(self.weights, self.terms, strict=True)
        return written_sum([(weight, term.text(names, self.mean)) for weight, term in parts], self.level)

    def rounded(self, digits: int, std: float) -> Formula:
        """Return the formula with weights of so many significant digits, for rewards with this `std`.

        Differences are also merged where this saves terms: x + (y - x) becomes y.
        """
        weights = {term: float(f"{weight:.{digits}g}") for term, weight in zip(self.terms, self.weights, strict=True)}
        whole: dict[Term, float] = {}
        for term, weight in weights.items():
            for inputs, sign in ((term.inputs, 1.0), (term.minus, -1.0)):
                if inputs:
                    figure = Term(term.name, tuple(sorted(inputs)) if term.name == "product" else inputs)
                    whole[figure] = float(f"{whole.get(figure, 0.0) + sign * weight:.{digits}g}")
        whole = {figure: weight for figure, weight in whole.items() if weight}
        parts = whole if 0 < len(whole) < len(weights) else weights
        level = round(self.level / std, digits) * std
        return replace(self, terms=tuple(parts), weights=tuple(parts.values()), level=level).narrowed()

    def written(self, std: float) -> Iterator[Formula]:
        """Yield the formula with weights of few digits, of more digits, and unchanged, for rewards of this std."""
        yield from (self.rounded(digits, std) for digits in _DIGITS)
        yield self

    def narrowed(self) -> Formula:
        """Return the same formula without inputs that no term uses."""
        used = sorted({place for term in self.terms for place in (*term.inputs, *term.minus)})
        now = {place: rank for rank, place in enumerate(used)}
        terms = tuple(
            replace(term, inputs=tuple(now[one] for one in term.inputs), minus=tuple(now[one] for one in term.minus))
            for term in self.terms
        )
        return replace(
            self,
            inputs=tuple(self.inputs[place] for place in used),
            mean=tuple(self.mean[place] for place in used),
            terms=terms,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any, widths: Mapping[str, int]) -> Formula:
        """Read a formula from JSON. `widths` are the numbers of columns of the fields."""
        found: Formula = checked(entry, cls, "layout.formula")
        finite((*found.mean, *found.weights, found.level), "layout.formula")
        known = all(
            one.field in FIELDS and 0 <= one.column < widths[one.field] and (one.period > 0 or not one.wave)
            for one in found.inputs
        )
        if not known or len(found.mean) != len(found.inputs) or len(found.weights) != len(found.terms):
            raise FormatError(
                f"layout.formula: expected inputs that are columns of {', '.join(FIELDS)}, a mean of each input and a "
                f"weight of each term, got {len(found.inputs)} inputs, {len(found.mean)} means, {len(found.terms)} "
                f"terms and {len(found.weights)} weights"
            )
        for term in found.terms:
            sizes = {"column": (1,), "product": (2,), "angle": (2,), "distance": (2, 4, 6)}.get(term.name, (1, 2, 3))
            used = (*term.inputs, *term.minus)
            if len(term.inputs) not in sizes or len(term.minus) not in (0, len(term.inputs)):
                raise FormatError(
                    f"layout.formula: expected a {term.name} of {' or '.join(map(str, sizes))} inputs, and as many in "
                    f"minus or none, got {len(term.inputs)} inputs and {len(term.minus)} in minus"
                )
            if not all(0 <= one < len(found.inputs) for one in used):
                raise FormatError(
                    f"layout.formula: expected terms with inputs from 0 to {len(found.inputs) - 1}, got {used}"
                )
        return found


def with_exact_formula(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout without a reward column if a formula computes the reward of every row exactly.

    This is for rewards that are not continuous, such as a count. The formula may also be linear, because the regression
    in residuals.py is not made for rewards of a few values.
    """
    (kind,) = layout.reward
    if isinstance(kind, (Continuous, Spiked)):
        return layout
    some = rows.shuffled(_MOST_ROWS)
    formula = _found(layout, some, some.reward.astype(np.float64), lines=True)
    if formula is None:
        return layout
    for written in formula.written(float(some.reward.std())):
        computed = (
            written(as_fields(chunk.arrays())).numpy().astype(rows.reward.dtype) for chunk in rows.chunks(_CHUNK)
        )
        if all((own == chunk.reward).all() for own, chunk in zip(computed, rows.chunks(_CHUNK), strict=True)):
            return replace(layout, reward=(Derived(),), formula=written)
    return layout


def with_formula(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the residual of a formula replaces the reward, if a formula is found.

    If the formula is exact in all rows, there is no reward column at all. The formula is searched in rows that go on.
    Terminal rows may have a constant reward in addition.
    """
    (kind,) = layout.reward
    if not isinstance(kind, (Continuous, Spiked)):
        return layout
    if layout.at_end is not None and len(layout.at_end.values) > 1:  # the reward column decides between these values
        return layout
    goes_on = ~rows.terminal
    ends = rows[rows.terminal] if 0.5 <= goes_on.mean() < 1 else None
    others = rows if ends is None else rows[goes_on]
    some = others.shuffled(_MOST_ROWS)
    std = float(some.reward.std(dtype=np.float64))
    formula = _found(layout, some, some.reward.astype(np.float64), lines=True)
    if formula is None:
        return layout
    if layout.at_end is not None:
        rows, ends = others, None
    for written in formula.written(std):
        price = _price(written, ends, std)
        if all(_is_exact(written, price, chunk, std) for chunk in rows.chunks(_CHUNK)):
            return replace(layout, reward=(Derived(),), formula=written, terminal_reward=price)
    price, off = _price(formula, ends, std), np.abs(_left(formula, some))
    follows = ends is None or np.abs(_left(formula, ends) - price).mean() <= off.max()
    is_enough = np.quantile(off, 0.999) <= EXACT * std if isinstance(kind, Spiked) else not formula.is_linear
    if not follows or not is_enough:
        return layout
    return replace(layout, reward=(Continuous(),), formula=formula, terminal_reward=price)


def _left(formula: Formula, rows: Transitions) -> NDArray[np.float64]:
    """Return the rewards minus those that a formula gives. (N,)"""
    return np.asarray(rows.reward - formula(as_fields(rows.arrays())).numpy(), np.float64)


def _price(formula: Formula, ends: Transitions | None, std: float) -> float:
    """Return what terminal rows are paid beside a formula, in a few digits. Returns 0 if there are no such rows."""
    price = 0.0 if ends is None else float(f"{np.median(_left(formula, ends)):.{_DIGITS[-1]}g}")
    return price if abs(price) > ALL_OFF * std else 0.0


def _is_exact(formula: Formula, price: float, rows: Transitions, std: float) -> bool:
    """Return whether a formula and the price of terminals give the reward of each row, which may be rounded."""
    off = np.abs(_left(formula, rows) - price * rows.terminal)
    return bool((off <= ALL_OFF * std + np.spacing(np.abs(rows.reward))).all())


def as_fields(sources: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the fields of rows as tensors (N, W) of float64, which `Formula` takes, from arrays in main memory."""
    return {
        field: torch.from_numpy(sources[field].reshape(len(sources[field]), -1).astype(np.float64)) for field in FIELDS
    }


def _values(one: Input, fields: Mapping[str, Tensor]) -> Tensor:
    """Return the values of an input in rows with these fields. (N,)"""
    column = fields[one.field][:, one.column].double()
    if one.wave:
        angle = column * (2 * math.pi / one.period)
        return angle.cos() if one.wave == "cos" else angle.sin()
    return column if one.value is None else (column == one.value).double()


def _found(layout: Layout, rows: Transitions, reward: NDArray[np.float64], *, lines: bool = False) -> Formula | None:
    """Search a formula for the `reward` (N,) of some rows. Returns None if none is good enough.

    It is fitted to every second row and judged by the others. With `lines` it may be linear.
    """
    std, fields = float(reward.std()), as_fields(rows.arrays())
    inputs = _inputs(layout, fields)
    few = len(rows) < 2 * ROWS_PER_WEIGHT * (len(inputs) + _MOST_TERMS)
    if not std > 0 or few or not 0 < len(inputs) <= _WIDEST:
        return None
    raw = torch.stack([_values(one, fields) for one in inputs])
    places = {one: place for place, one in enumerate(inputs)}
    last = {
        replace(one, field="next_observation"): place for one, place in places.items() if one.field == "observation"
    }
    paired = [last.get(one, place) for place, one in enumerate(inputs)]
    mean = raw.mean(1)[paired].tolist()  # observation and next observation share one mean: it cancels in differences
    y = torch.from_numpy(reward / std)
    # Linear terms: a next observation enters as its change, because it is nearly equal to the observation. The most
    # frequent value of a discrete action gets no term, so the weights of the others are relative to it.
    usual = {}
    for place in sorted(range(len(inputs)), key=lambda place: float(raw[place].mean())):
        if inputs[place].value is not None:
            usual[inputs[place].column] = place
    line = [
        Term("column", (place,), () if paired[place] == place else (paired[place],))
        for place in range(len(inputs))
        if place not in usual.values()
    ]
    ground = _values_of(line, raw, mean, raw.dtype)
    changes = ground.std(1) / raw[[term.inputs[0] for term in line]].std(1)  # 1 for a column, less for its change
    own = _independent(ground, changes.nan_to_num().sort(descending=True, stable=True).indices)
    line, ground = [line[place] for place in own], ground[own]
    by_line = _Fit(_Table(line, ground, y))
    is_line = by_line.left <= _NO_MORE
    if is_line and not lines:
        return None
    chosen = [] if is_line else _chosen(by_line, layout, inputs, raw, mean)
    if not chosen and not is_line:
        return None
    terms, more = [*line, *chosen], _values_of(chosen, raw, mean, raw.dtype)
    fit = _Fit(_Table(terms, torch.cat([ground, more]), y)).pruned()
    if not is_line and not fit.left <= LEAVES * by_line.left:
        return None
    zero = [0.0] * len(mean)
    plain = _Fit(_Table(terms, _values_of(terms, raw, zero, raw.dtype), y)).pruned()
    if plain.left <= max(1.1 * fit.left, _NO_MORE):  # a formula without means is easier to read
        fit, mean = plain, zero
    formula = Formula(
        tuple(inputs), tuple(mean), tuple(fit.terms), tuple((fit.weights * std).tolist()), fit.level * std
    )
    formula = formula.narrowed()
    return formula if _is_steady(formula, fields, std) else None


def _independent(values: Tensor, order: Tensor) -> list[int]:
    """Return the places of the terms that vary, and are no weighted sum of terms that come earlier in this order.

    `values` (T, N) are those of the terms.
    """
    fitted = values[order, ::2] - values[order, ::2].mean(1, keepdim=True)
    size = torch.linalg.vector_norm(fitted, dim=1)
    _, triangle = torch.linalg.qr(fitted.T, mode="r")
    own = (triangle.diagonal().abs() > _DEPENDENT * size) & (fitted.amax(1) > fitted.amin(1))
    return sorted(order[own].tolist())


def _is_steady(formula: Formula, fields: Mapping[str, Tensor], std: float) -> bool:
    """Return whether small errors of observation, action and step cause only small errors of the reward.

    Collinear columns can have large weights that cancel in real rows. In generated rows, which have small errors, they
    would not cancel.
    """
    draw = torch.Generator().manual_seed(0)

    def moved(values: Tensor) -> Tensor:
        return values + _ERROR * values.std(0) * torch.randn(values.shape, generator=draw, dtype=values.dtype)

    plain = {one.field for one in formula.inputs if one.is_number}
    here, there = fields["observation"], fields["next_observation"]
    action = moved(fields["action"]) if "action" in plain else fields["action"]
    off = {"observation": moved(here), "action": action}
    off["next_observation"] = off["observation"] + moved(there - here)
    return float((formula(off) - formula(fields)).std()) <= _STEADY * std


class _Table:
    """Values of terms in rows, and their moments for least squares. Fits use every second row; the others judge."""

    def __init__(self, terms: Sequence[Term], values: Tensor, y: Tensor) -> None:
        """`values` (T, N) are those of the terms, and `y` (N,) is the target."""
        self.terms = terms
        self.level, self.spread = values[:, ::2].mean(1), values[:, ::2].std(1)
        self.values = (values - self.level[:, None]) / self.spread[:, None]
        """Values of the terms, scaled to mean 0 and std 1. (T, N)"""
        self.y_level = y[::2].mean()
        self.target = y - self.y_level
        fitted = self.values[:, ::2].contiguous()
        self.moments = fitted @ fitted.T / fitted.shape[1]
        """Covariance of the terms. (T, T)"""
        self.target_moments = fitted @ self.target[::2] / fitted.shape[1]
        """Covariance of each term with the target. (T,)"""
        if not bool(self.moments.isfinite().all()):  # squares of huge numbers overflow
            self.moments = torch.eye(len(values), dtype=torch.float64)


class _Fit:
    """Least squares regression of a reward on some terms of a table."""

    def __init__(self, table: _Table, places: Sequence[int] | None = None) -> None:
        """`places` are the indices of the terms in the table. None means all terms."""
        self.table = table
        self._places = torch.arange(len(table.terms)) if places is None else torch.tensor(places)
        at = self._places
        self.terms = [table.terms[place] for place in at.tolist()]
        self._inverse = torch.linalg.pinv(table.moments[at][:, at], hermitian=True, rtol=1e-12)
        self._scaled = self._inverse @ table.target_moments[at]
        every_weight = torch.zeros_like(table.target_moments).index_copy(0, at, self._scaled)
        self.residual = table.target - every_weight @ table.values
        self.left = float(self.residual[1::2].var())
        """Residual variance in the rows that judge."""
        self._fitted_left = float(self.residual[::2].var())
        self.weights = self._scaled / table.spread[at]
        self.level = float(table.y_level - self.weights @ table.level[at])

    def pruned(self) -> _Fit:
        """Return a fit without the terms that explain nothing beside the others.

        Half of the useless terms are removed at a time, because of two equivalent terms one is still needed.
        """
        # How much the residual variance of the fitted rows grows without each term.
        cost = self._scaled.square() / self._inverse.diagonal().clamp(min=1e-300)
        useless = int((cost < _LOSES * max(self._fitted_left, _NO_MORE)).sum())
        if not useless or len(self.terms) == 1:
            return self
        fewer = _Fit(self.table, self._places[cost.argsort()[-(-useless // 2) :].sort().values].tolist())
        return fewer.pruned() if fewer.left <= 1.1 * max(self.left, _NO_MORE) else self


def _inputs(layout: Layout, fields: Mapping[str, Tensor]) -> list[Input]:
    """Return the inputs of a formula: all columns of observation, action and next observation.

    Constant columns are included, since a goal may be constant. A discrete action gives one input for each value, and a
    circular column gives its cosine and sine too.
    """
    found = []
    circles = {place.source.start: place.kind.circle for place in layout.places if place.field == "observation"}
    values = {place.source.start: place.kind.class_count for place in layout.places if place.field == "action"}
    for field in FIELDS:
        for column in range(fields[field].shape[1]):
            if field == "action" and 2 < values.get(column, 0) <= _MOST_VALUES:
                found += [Input(field, column, value) for value in np.unique(fields[field][:, column]).tolist()]
            else:
                found.append(Input(field, column))
            period = circles.get(column, 0.0) if field != "action" else 0.0
            if period:
                found += [Input(field, column, None, wave, period) for wave in _WAVES]
    return found


def _chosen(by_line: _Fit, layout: Layout, inputs: Sequence[Input], raw: Tensor, mean: Sequence[float]) -> list[Term]:
    """Choose terms greedily that explain what the linear regression `by_line` leaves, in a part of the rows.

    `raw` (C, N) are the values of the inputs, `mean` their means. This is forward selection by orthogonal
    least squares: after each choice, the chosen term is projected out of all candidates and out of the residual.
    """
    every = -(-raw.shape[1] // _TRIED)
    raw, left, ground = raw[:, ::every], by_line.residual[::every].float(), by_line.table.values[:, ::every].float()
    candidates = list(_candidates(inputs, _used(inputs, raw, left), layout))
    if not candidates:
        return []
    values = _values_of(candidates, raw.contiguous(), mean, torch.float32)
    values -= values.mean(1, keepdim=True)
    size = torch.linalg.vector_norm(values, dim=1).square()
    basis, _ = torch.linalg.qr((ground - ground.mean(1, keepdim=True)).T)
    values.addmm_(values @ basis, basis.T, alpha=-1)
    left = left - left.mean()
    left = left - basis @ (basis.T @ left)
    chosen: list[int] = []
    while len(chosen) < _MOST_TERMS:
        own = torch.linalg.vector_norm(values, dim=1).square()
        explains = torch.where(own > 1e-6 * size, (values @ left).square() / own.clamp(min=1e-30), torch.zeros(()))
        best = int(explains.argmax())
        if not float(explains[best]) > _ADDS * float(left.square().sum()) or not torch.isfinite(explains[best]):
            break
        chosen.append(best)
        direction = values[best] / own[best].sqrt()
        left = left - (direction @ left) * direction
        values.addr_(values @ direction, direction, alpha=-1)
        values[chosen] = 0.0
        if float(left.square().mean()) < 1e-10:
            break
    return [candidates[place] for place in chosen]


def _used(inputs: Sequence[Input], raw: Tensor, left: Tensor) -> set[int]:
    """Return the inputs that terms are made of.

    If a field has too many columns, those are chosen whose squares explain most of `left` (N,), the residual of a
    linear regression. `raw` (C, N) are the values of the inputs.
    """
    squares = (raw - raw.mean(1, keepdim=True)).square().float()
    squares -= squares.mean(1, keepdim=True)
    explained = ((squares @ left).square() / squares.square().sum(1).clamp(min=1e-30)).tolist()
    used: set[int] = set()
    for fields in (("action",), PAIR):
        places = [place for place, one in enumerate(inputs) if one.field in fields]
        score: dict[int, float] = {}
        for place in places:
            column = inputs[place].column
            score[column] = max(explained[place], score.get(column, 0.0))
        best = {*sorted(score, key=lambda column: -score[column])[:_MOST_INPUTS]}
        used |= {place for place in places if inputs[place].column in best}
    return used


def _candidates(inputs: Sequence[Input], used: set[int], layout: Layout) -> Iterator[Term]:
    """Yield all nonlinear terms that may be in a formula, of the inputs in `used`."""
    places = {(one.field, one.column): place for place, one in enumerate(inputs) if one.is_number and place in used}
    state = sorted(column for field, column in places if field == "observation" and (FIELDS[2], column) in places)
    action = [place for place, one in enumerate(inputs) if one.field == "action" and place in used]
    numbers = [place for place in action if inputs[place].value is None]

    def at(field: str, columns: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[field, column] for column in columns)

    circles = [
        sphere.columns for sphere in layout.spheres if len(sphere.columns) == 2 and {*sphere.columns} <= {*state}
    ]
    figures: list[tuple[Any, Sequence[int]]] = [("product", pair) for pair in combinations_with_replacement(state, 2)]
    blocks = [
        [tuple(range(first, first + size)) for first in state if {*range(first, first + size)} <= {*state}]
        for size in range(1, _LONGEST + 1)
    ]
    figures += [("length", block) for own in blocks for block in own]
    figures += [("distance", one + two) for own in blocks for one, two in combinations(own, 2)]
    yield from (Term("distance", at(FIELDS[2], block) + at(FIELDS[0], block)) for own in blocks for block in own)
    figures += [("angle", pair) for first, second in circles for pair in ((first, second), (second, first))]
    for name, columns in figures:
        here, there = at(FIELDS[0], columns), at(FIELDS[2], columns)
        yield Term(name, here)
        yield Term(name, there)
        yield Term(name, there, here)
    for one in state:
        now, then = places[FIELDS[0], one], places[FIELDS[2], one]
        for two in state:
            yield Term("product", (now, places[FIELDS[2], two]), (now, places[FIELDS[0], two]))
        for place in action:
            yield from (Term("product", (place, now)), Term("product", (place, then)))
            yield Term("product", (place, then), (place, now))
        for place in numbers:
            yield from (Term("distance", (place, now)), Term("distance", (place, then)))
    yield from (Term("product", pair) for pair in combinations_with_replacement(numbers, 2))
    waves = [place for place, one in enumerate(inputs) if one.wave and place in used]
    yield from (Term("product", pair) for pair in combinations_with_replacement(waves, 2))
    for place in waves:
        yield from (Term("product", (place, other)) for other in (*places.values(), *action))
    for size in range(1, _LONGEST + 1):
        for first in range(len(numbers) - size + 1):
            yield Term("length", tuple(numbers[first : first + size]))
