"""Rewards that follow from the rest of a row by a formula: a cost of squares, a distance, a price times an amount.

A line in the columns does not tell such a reward, and a network only learns it to some error. So a formula is looked
for: a sum of columns, products of two of them, lengths of neighbouring columns, distances between such, and squares of
angles. It is found term by term, the one first that explains the most. Where it leaves next to nothing of what a line
leaves, the matrix has what it leaves in place of the reward. Rows come back with what the formula says about each of
them, so that rewards fit their rows.

A formula that explains only a part is worse than none: the network would have to undo its bends.

NOTE[paper]: the reference generates the reward like any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
"""Share of the variance which a line leaves that a formula may leave of it, in rows that it was not fitted on."""
EXACT = 1e-3
"""Stds of the reward that all rows but one in a thousand are near enough, for a formula to tell a reward's special
values too."""
ALL_OFF = 2e-5
"""Stds of the reward that no row may be off, for nothing to be left of it: the matrix then has no reward."""
_DIGITS = 3, 6  # that weights are written with, if that does
_NO_MORE = 1e-6  # share of the variance of a reward which, where a line leaves no more, no formula is needed for
_CHUNK = 1 << 16
_MOST_ROWS, _TRIED = 1 << 15, 1 << 12  # that a formula is fitted on, and that its terms are chosen in
_TOGETHER = 64  # terms that are computed at a time: they stay in the cache
_WIDEST = 256  # inputs up to which a formula is looked for
_MOST_INPUTS = 32  # columns of a field that terms are made of
_MOST_TERMS, _ADDS, _LOSES = 64, 0.01, 1e-3  # terms, and what each has to explain of what those before it leave
_ERROR, _STEADY = 0.01, 0.1  # stds of a column that each is moved by, and of the reward that it may then change
_LONGEST = 3  # neighbouring columns of a length
_MOST_VALUES = 32  # of an action without an order


class Input(NamedTuple):
    """A column of a row."""

    field: str
    column: int
    value: float | None = None
    """1 where the column has this value and else 0; None: the column itself."""


@dataclass(frozen=True)
class Term:
    """A figure of some inputs, less the same figure of some others."""

    name: Literal["column", "product", "length", "distance", "angle"]
    inputs: tuple[int, ...]
    minus: tuple[int, ...] = ()

    def text(self, names: Sequence[str], mean: Sequence[float]) -> str:
        """It in words, of inputs with these names and means."""

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
        """It in rows with these inputs (C, N), of these means. (N,)

        No tensor is made of numbers here: on a GPU this is part of captured work.
        """
        found = _figure(self.name, self.inputs, inputs, mean)
        return found - _figure(self.name, self.minus, inputs, mean) if self.minus else found


def _figure(name: str, places: Any, inputs: Sequence[Tensor] | Tensor, mean: Sequence[float] | Tensor) -> Tensor:
    """A figure of the inputs at these places, each of which may be a tensor: the places of many figures."""
    first = inputs[places[0]]
    if name == "column":
        return first - mean[places[0]]
    if name == "product":
        return (first - mean[places[0]]) * (inputs[places[1]] - mean[places[1]])
    if name == "angle":
        return torch.atan2(inputs[places[1]], first).square()
    apart = [inputs[place] for place in places]
    if name == "distance":
        half = len(places) // 2
        apart = [one - other for one, other in zip(apart[:half], apart[half:], strict=True)]
    return torch.stack(apart).square().sum(0).sqrt()


def _values_of(terms: Sequence[Term], raw: Tensor, mean: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Terms in rows with these inputs (C, N), of these means. (T, N) There are thousands: those of one shape are
    computed together."""
    found, about = raw.new_empty((len(terms), raw.shape[1]), dtype=dtype), raw.new_tensor(mean)[:, None]
    shapes: dict[tuple[str, int, int], list[int]] = {}
    for place, term in enumerate(terms):
        shapes.setdefault((term.name, len(term.inputs), len(term.minus)), []).append(place)
    for (name, _, minus), places in shapes.items():
        for start in range(0, len(places), _TOGETHER):
            own = places[start : start + _TOGETHER]
            values = _figure(name, torch.tensor([terms[place].inputs for place in own]).T, raw, about)
            if minus:
                values -= _figure(name, torch.tensor([terms[place].minus for place in own]).T, raw, about)
            found[own] = values.to(dtype)
    return found


@dataclass(frozen=True)
class Formula:
    """A reward, as far as the rest of a row tells it."""

    inputs: tuple[Input, ...]
    mean: tuple[float, ...]
    """Of each input."""
    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    level: float

    def __call__(self, fields: Mapping[str, Tensor]) -> Tensor:
        """The reward of rows with these fields (N, W), in float64. (N,)"""
        inputs = [_values(one, fields) for one in self.inputs]
        told = torch.full_like(inputs[0], self.level)
        for term, weight in zip(self.terms, self.weights, strict=True):
            told += weight * term.of(inputs, self.mean)
        return told

    def text(self, name: Callable[[str, int], str]) -> str:
        """It in words; `name` is that of a field's column."""
        names = [
            name(one.field, one.column) if one.value is None else f"[{name(one.field, one.column)} = {one.value:g}]"
            for one in self.inputs
        ]
        parts = zip(self.weights, self.terms, strict=True)
        return written_sum([(weight, term.text(names, self.mean)) for weight, term in parts], self.level)

    def rounded(self, digits: int, std: float) -> Formula:
        """The same with numbers of so many digits, and y instead of x + (y - x), for rewards of this std."""
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
        """The same with numbers of few digits, then of more, and then as it is, for rewards of this std."""
        yield from (self.rounded(digits, std) for digits in _DIGITS)
        yield self

    def narrowed(self) -> Formula:
        """The same with no other inputs than those of its terms."""
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
        return {**asdict(self), "inputs": [list(one) for one in self.inputs]}

    @classmethod
    def from_json(cls, entry: Any, widths: Mapping[str, int]) -> Formula:
        """Of rows whose fields have these widths."""
        told = {**checked(entry, dict[str, Any], "layout.formula")}
        inputs = checked(told.pop("inputs", None), list[tuple[str, int, float | None]], "layout.formula.inputs")
        found: Formula = checked({**told, "inputs": []}, cls, "layout.formula")
        found = replace(found, inputs=tuple(Input(*one) for one in inputs))
        finite((*found.mean, *found.weights, found.level), "layout.formula")
        known = all(one.field in FIELDS and 0 <= one.column < widths[one.field] for one in found.inputs)
        if not known or len(found.mean) != len(found.inputs) or len(found.weights) != len(found.terms):
            raise FormatError("layout.formula: expected columns of the rows, and a weight of each term")
        for term in found.terms:
            sizes = {"column": (1,), "product": (2,), "angle": (2,), "distance": (2, 4, 6)}.get(term.name, (1, 2, 3))
            used = (*term.inputs, *term.minus)
            if len(term.inputs) not in sizes or len(term.minus) not in (0, len(term.inputs)):
                raise FormatError(f"layout.formula: a {term.name} of {len(term.inputs)} columns")
            if not all(0 <= one < len(found.inputs) for one in used):
                raise FormatError(f"layout.formula: expected inputs from 0 to {len(found.inputs) - 1}")
        return found


def with_exact_formula(layout: Layout, rows: Transitions) -> Layout:
    """The same layout without a reward that is no plain number, such as a count, if a formula gives that of every row.

    A line is such a formula too: no regression tells rewards of a few values.
    """
    (kind,) = layout.reward
    if isinstance(kind, (Continuous, Spiked)):
        return layout
    some = rows[:: -(-len(rows) // _MOST_ROWS)]
    formula = _found(layout, some, some.reward.astype(np.float64), lines=True)
    if formula is None:
        return layout
    for written in formula.written(float(some.reward.std())):
        told = (written(as_fields(chunk.arrays())).numpy().astype(rows.reward.dtype) for chunk in rows.chunks(_CHUNK))
        if all((own == chunk.reward).all() for own, chunk in zip(told, rows.chunks(_CHUNK), strict=True)):
            return replace(layout, reward=(Derived(),), formula=written)
    return layout


def with_formula(layout: Layout, rows: Transitions) -> Layout:
    """The same layout, with what a formula leaves of the reward in place of it, if there is one."""
    (kind,) = layout.reward
    if not isinstance(kind, (Continuous, Spiked)):
        return layout
    if layout.at_end is not None and len(layout.at_end.values) > 1:  # which the matrix has to tell from each other
        return layout
    if layout.at_end is not None:
        rows = rows[~rows.terminal]
    some = rows[:: -(-len(rows) // _MOST_ROWS)]
    reward = _paid(layout, some)
    formula = _found(layout, some, reward)
    if formula is None:
        return layout
    if isinstance(kind, Spiked) and np.quantile(_off(formula, some, reward), 0.999) > EXACT * reward.std():
        return layout
    std = float(reward.std())
    for written in formula.written(std):
        if all(_off(written, chunk, _paid(layout, chunk)).max() <= ALL_OFF * std for chunk in rows.chunks(_CHUNK)):
            return replace(layout, reward=(Derived(),), formula=written)
    return replace(layout, reward=(Continuous(),), formula=formula)


def _paid(layout: Layout, rows: Transitions) -> NDArray[np.float64]:
    """Rewards without what a terminal row has more."""
    return np.asarray(rows.reward.astype(np.float64) - layout.terminal_reward * rows.terminal)


def _off(formula: Formula, rows: Transitions, reward: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(reward - formula(as_fields(rows.arrays())).numpy()))


def as_fields(sources: Mapping[str, Array]) -> dict[str, Tensor]:
    """What a formula takes, of arrays in main memory."""
    return {
        field: torch.from_numpy(sources[field].reshape(len(sources[field]), -1).astype(np.float64)) for field in FIELDS
    }


def _values(one: Input, fields: Mapping[str, Tensor]) -> Tensor:
    column = fields[one.field][:, one.column].double()
    return column if one.value is None else (column == one.value).double()


def _found(layout: Layout, rows: Transitions, reward: NDArray[np.float64], *, lines: bool = False) -> Formula | None:
    """The formula of some rows, fitted on every second one and judged by the others. With `lines` it may be a line."""
    std, fields = float(reward.std()), as_fields(rows.arrays())
    inputs = _inputs(layout, fields)
    few = len(rows) < 2 * ROWS_PER_WEIGHT * (len(inputs) + _MOST_TERMS)
    if not std > 0 or few or not 0 < len(inputs) <= _WIDEST:
        return None
    raw = torch.stack([_values(one, fields) for one in inputs])
    places = {one: place for place, one in enumerate(inputs)}
    last = {Input("next_observation", one.column): place for one, place in places.items() if one.field == "observation"}
    paired = [last.get(one, place) for place, one in enumerate(inputs)]
    mean = raw.mean(1)[paired].tolist()  # one for the same quantity at two moments, so that differences have none
    y = torch.from_numpy(reward / std)
    # A next observation enters as the change since the last one: the two are nearly the same. Values of an action
    # enter as what is paid more for them than for the most frequent one.
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
    varies = ground[:, ::2].std(1) > 0
    line, ground = [term for term, own in zip(line, varies.tolist(), strict=True) if own], ground[varies]
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
    if plain.left <= max(1.1 * fit.left, _NO_MORE):  # it reads better, unless columns are huge
        fit, mean = plain, zero
    formula = Formula(
        tuple(inputs), tuple(mean), tuple(fit.terms), tuple((fit.weights * std).tolist()), fit.level * std
    )
    formula = formula.narrowed()
    return formula if _is_steady(formula, fields, std) else None


def _is_steady(formula: Formula, fields: Mapping[str, Tensor], std: float) -> bool:
    """Whether small errors of observation, action and step make small errors of the reward only. Columns that follow
    from each other can have large weights that cancel, until one of them is a little off."""
    draw = torch.Generator().manual_seed(0)

    def moved(values: Tensor) -> Tensor:
        return values + _ERROR * values.std(0) * torch.randn(values.shape, generator=draw, dtype=values.dtype)

    plain = {one.field for one in formula.inputs if one.value is None}
    here, there = fields["observation"], fields["next_observation"]
    action = moved(fields["action"]) if "action" in plain else fields["action"]
    off = {"observation": moved(here), "action": action}
    off["next_observation"] = off["observation"] + moved(there - here)
    return float((formula(off) - formula(fields)).std()) <= _STEADY * std


class _Table:
    """Terms in rows. Half of the rows are for least squares, every second one, and the others judge it."""

    def __init__(self, terms: Sequence[Term], values: Tensor, y: Tensor) -> None:
        """`values` of the terms (T, N), and what is to be explained. (N,)"""
        self.terms = terms
        self.level, self.spread = values[:, ::2].mean(1), values[:, ::2].std(1)
        self.own = (values - self.level[:, None]) / self.spread[:, None]
        """Their values with mean 0 and std 1. (T, N)"""
        self.y_level = y[::2].mean()
        self.aim = y - self.y_level
        fitted = self.own[:, ::2].contiguous()
        self.moments, self.told = fitted @ fitted.T / fitted.shape[1], fitted @ self.aim[::2] / fitted.shape[1]
        if not bool(self.moments.isfinite().all()):  # squares of huge numbers
            self.moments = torch.eye(len(values), dtype=torch.float64)


class _Fit:
    """Least squares of a reward on terms."""

    def __init__(self, table: _Table, places: Sequence[int] | None = None) -> None:
        """`places` of the terms in the table; None: all."""
        self.table, self._places = table, torch.arange(len(table.terms)) if places is None else torch.tensor(places)
        at = self._places
        self.terms = [table.terms[place] for place in at.tolist()]
        self._inverse = torch.linalg.pinv(table.moments[at][:, at], hermitian=True, rtol=1e-12)
        self._scaled = self._inverse @ table.told[at]
        self.residual = table.aim - torch.zeros_like(table.told).index_copy(0, at, self._scaled) @ table.own
        self.left, self._own_left = float(self.residual[1::2].var()), float(self.residual[::2].var())
        self.weights = self._scaled / table.spread[at]
        self.level = float(table.y_level - self.weights @ table.level[at])

    def pruned(self) -> _Fit:
        """The same without terms that explain nothing beside the others. Half of those at a time: of two that say the
        same, one is needed."""
        cost = self._scaled.square() / self._inverse.diagonal().clamp(min=1e-300)
        useless = int((cost < _LOSES * max(self._own_left, _NO_MORE)).sum())
        if not useless or len(self.terms) == 1:
            return self
        fewer = _Fit(self.table, self._places[cost.argsort()[-(-useless // 2) :].sort().values].tolist())
        return fewer.pruned() if fewer.left <= 1.1 * max(self.left, _NO_MORE) else self


def _inputs(layout: Layout, fields: Mapping[str, Tensor]) -> list[Input]:
    """All columns, constant ones too, since a goal may be constant. An action without an order gives one input for each
    of its values."""
    found = []
    values = {place.source.start: place.kind.class_count for place in layout.places if place.field == "action"}
    for field in FIELDS:
        for column in range(fields[field].shape[1]):
            if field == "action" and 2 < values.get(column, 0) <= _MOST_VALUES:
                found += [Input(field, column, value) for value in np.unique(fields[field][:, column]).tolist()]
            else:
                found.append(Input(field, column))
    return found


def _chosen(by_line: _Fit, layout: Layout, inputs: Sequence[Input], raw: Tensor, mean: Sequence[float]) -> list[Term]:
    """Terms that explain what a line leaves, in some rows, in the order in which they do so."""
    every = -(-raw.shape[1] // _TRIED)
    raw, left, ground = raw[:, ::every], by_line.residual[::every].float(), by_line.table.own[:, ::every].float()
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
    """The inputs that terms are made of: where a field has too many, those whose squares tell the most."""
    squares = (raw - raw.mean(1, keepdim=True)).square().float()
    squares -= squares.mean(1, keepdim=True)
    told = ((squares @ left).square() / squares.square().sum(1).clamp(min=1e-30)).tolist()
    used: set[int] = set()
    for fields in (("action",), PAIR):
        own = [place for place, one in enumerate(inputs) if one.field in fields]
        score: dict[int, float] = {}
        for place in own:
            column = inputs[place].column
            score[column] = max(told[place], score.get(column, 0.0))
        best = {*sorted(score, key=lambda column: -score[column])[:_MOST_INPUTS]}
        used |= {place for place in own if inputs[place].column in best}
    return used


def _candidates(inputs: Sequence[Input], used: set[int], layout: Layout) -> Iterator[Term]:
    places = {(one.field, one.column): place for place, one in enumerate(inputs) if one.value is None and place in used}
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
    for size in range(1, _LONGEST + 1):
        for first in range(len(numbers) - size + 1):
            yield Term("length", tuple(numbers[first : first + size]))
