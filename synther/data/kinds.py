"""All kinds of columns, and how they are written to and read from JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from synther.data.categories import Categorical, Codebook, Drawn, OneHot, as_keys
from synther.data.kind import Array, Kind, Matrix
from synther.data.numbers import Bounded, Continuous, Logarithmic, Real, Spiked, Wrapped
from synther.data.spaces import number_from_json, number_to_json
from synther.data.values import Binary, Constant, Derived, Integer, Levels
from synther.errors import FormatError
from synther.schema import checked

__all__ = [
    "Array",
    "Binary",
    "Bounded",
    "Categorical",
    "Codebook",
    "Constant",
    "Continuous",
    "Derived",
    "Drawn",
    "Integer",
    "Kind",
    "Levels",
    "Logarithmic",
    "Matrix",
    "OneHot",
    "Real",
    "Spiked",
    "Wrapped",
    "as_keys",
    "from_json",
    "to_json",
]  # fmt: skip

_KINDS: dict[str, type[Kind]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Constant, Continuous, Bounded, Wrapped, Logarithmic, Spiked, Levels, Integer, Binary),
        *(Categorical, OneHot, Codebook, Drawn, Derived),
    )
}


def to_json(kind: Kind) -> dict[str, Any]:
    """Return a kind as a JSON object: its name under `kind`, and its fields."""
    fields = asdict(kind)  # type: ignore[call-overload]  # every kind is a dataclass
    return {"kind": type(kind).__name__.lower(), **{name: number_to_json(value) for name, value in fields.items()}}


def from_json(entry: Any) -> Kind:
    """Read a kind from a JSON object as returned by `to_json`."""
    options = checked(entry, dict[str, Any], "the kind of a column")
    name = checked(options.get("kind"), str, "the kind of a column")
    if name not in _KINDS:
        raise FormatError(f"unknown kind of column {name!r}: expected one of {', '.join(_KINDS)}")
    fields = {option: number_from_json(value) for option, value in options.items() if option != "kind"}
    kind: Kind = checked(fields, _KINDS[name], f"the kind {name!r} of a column")
    return kind
