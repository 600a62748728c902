"""A formula of a row, such as a quadratic cost, a distance, or a price times an amount. rewards.py finds formulas for
rewards.

A formula is a weighted sum of terms: columns, cosine and sine of circular columns, products of two of these, lengths of
neighbouring columns (as one vector), distances between two such vectors or from a fixed point, and squares of angles.

Read `Input` and `Term`, then `Formula`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from synther.data.identities import FIELDS, written_sum
from synther.errors import FormatError
from synther.schema import checked, finite

if TYPE_CHECKING:
    from synther.data.kind import Array

DIGITS = 3, 6
"""Significant digits to which weights are rounded: the first that leaves the formula exact in all rows."""
_TOGETHER = 64  # number of terms that are computed at a time, so that they stay in the cache


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

    def __call__(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the values of the input in rows with these fields. (N,)"""
        column = fields[self.field][:, self.column].double()
        if self.wave:
            angle = column * (2 * math.pi / self.period)
            return angle.cos() if self.wave == "cos" else angle.sin()
        return column if self.value is None else (column == self.value).double()

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
    vectors (the first and the second half of the inputs); the distance of a vector from a fixed point, `centre`; and
    the square of the angle with this cosine and sine. Columns and products are computed from inputs minus their means.
    """

    name: Literal["column", "product", "length", "distance", "point", "angle"]
    inputs: tuple[int, ...]
    minus: tuple[int, ...] = ()
    centre: tuple[float, ...] = ()

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
            if self.name in ("length", "point"):
                centre = self.centre or (0.0,) * len(plain)
                off = [f" {'-' if at > 0 else '+'} {abs(at):.6g}" if at else "" for at in centre]
                return f"|{', '.join(map(str.__add__, plain, off))}|"
            return f"|{', '.join(plain[:half])} - {', '.join(plain[half:])}|"

        return f"({written(self.inputs)} - {written(self.minus)})" if self.minus else written(self.inputs)

    def of(self, inputs: Sequence[Tensor] | Tensor, mean: Sequence[float]) -> Tensor:
        """Return the term in rows with these `inputs` (C, N), where the inputs have these means. (N,)

        This creates no tensor from Python numbers, because on a GPU it runs inside a captured CUDA graph.
        """
        found = _figure(self.name, self.inputs, inputs, self.centre or mean)
        return found - _figure(self.name, self.minus, inputs, self.centre or mean) if self.minus else found


def _figure(name: str, places: Any, inputs: Sequence[Tensor] | Tensor, mean: Sequence[float] | Tensor) -> Tensor:
    """Return the figure `name` of the inputs at these `places`.

    `mean` is the mean of each input. For a length from a fixed point, it is this point. A place may also be a tensor of
    T places. Then T figures are computed together.
    """
    first = inputs[places[0]]
    if name == "column":
        return first - mean[places[0]]
    if name == "product":
        return (first - mean[places[0]]) * (inputs[places[1]] - mean[places[1]])
    if name == "angle":
        return torch.atan2(inputs[places[1]], first).square()
    vector = [inputs[place] for place in places]
    if name == "point":
        vector = [one - at for one, at in zip(vector, mean, strict=True)]
    if name == "distance":
        half = len(places) // 2
        vector = [one - other for one, other in zip(vector[:half], vector[half:], strict=True)]
    return torch.stack(vector).square().sum(0).sqrt()


def values_of(terms: Sequence[Term], raw: Tensor, mean: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return the values of all terms in rows with the inputs `raw` (C, N), which have these means. (T, N)

    There may be thousands of terms, so terms of the same shape are computed together.
    """
    found, means = raw.new_empty((len(terms), raw.shape[1]), dtype=dtype), raw.new_tensor(mean)[:, None]
    shapes: dict[tuple[str, int, int], list[int]] = {}
    for place, term in enumerate(terms):
        if term.centre:
            found[place] = term.of(raw, mean).to(dtype)
            continue
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
        inputs = [one(fields) for one in self.inputs]
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
        """Return the formula with weights and points of so many significant digits, for rewards with this
        `std`.

        Differences are also merged where this saves terms: x + (y - x) becomes y.
        """

        def short(number: float) -> float:
            return float(f"{number:.{digits}g}")

        weights = {
            replace(term, centre=tuple(map(short, term.centre))): short(weight)
            for term, weight in zip(self.terms, self.weights, strict=True)
        }
        whole: dict[Term, float] = {}
        for term, weight in weights.items():
            for inputs, sign in ((term.inputs, 1.0), (term.minus, -1.0)):
                if inputs:
                    ordered = tuple(sorted(inputs)) if term.name == "product" else inputs
                    figure = Term(term.name, ordered, (), term.centre)
                    whole[figure] = short(whole.get(figure, 0.0) + sign * weight)
        whole = {figure: weight for figure, weight in whole.items() if weight}
        parts = whole if 0 < len(whole) < len(weights) else weights
        level = round(self.level / std, digits) * std
        return replace(self, terms=tuple(parts), weights=tuple(parts.values()), level=level).narrowed()

    def written(self, std: float) -> Iterator[Formula]:
        """Yield the formula with weights of few digits, of more digits, and unchanged, for rewards of this std."""
        yield from (self.rounded(digits, std) for digits in DIGITS)
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
            finite(term.centre, "layout.formula")
            if len(term.centre) != (len(term.inputs) if term.name == "point" else 0):
                raise FormatError(
                    f"layout.formula: expected one number for each input in the centre of a point, and none in other "
                    f"terms, got {len(term.centre)} for a {term.name} of {len(term.inputs)} inputs"
                )
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


def as_fields(sources: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the fields of rows as tensors (N, W) of float64, which `Formula` takes, from arrays in main memory."""
    return {
        field: torch.from_numpy(sources[field].reshape(len(sources[field]), -1).astype(np.float64)) for field in FIELDS
    }
