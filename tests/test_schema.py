"""Values out of files against type annotations: the value, or an error that names its place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from synther.errors import DataError, FormatError
from synther.schema import check_size, checked, finite, parse, printable, read


@dataclass(frozen=True)
class Inner:
    size: int
    names: tuple[str, ...] = ()
    more: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise DataError("size must be at least 0")


class Outer(TypedDict):
    inner: Inner
    kind: Literal["a", "b"]
    pair: NotRequired[tuple[int, float]]


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (3, float, 3.0),
        (math.inf, float, math.inf),
        (3, int | float, 3),
        (3.5, int | float, 3.5),
        (None, int | None, None),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([[1, [0.5]]], tuple[tuple[int, tuple[float, ...]], ...], ((1, (0.5,)),)),
        ({"inner": {"size": 1, "names": ["x"]}, "kind": "a"}, Outer, {"inner": Inner(1, ("x",)), "kind": "a"}),
        ({"any": [{}]}, dict[str, Any], {"any": [{}]}),
    ],
)
def test_what_fits_is_taken(value, kind, found):
    assert checked(value, kind, "it") == found
    assert type(checked(value, kind, "it")) is type(found)


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        ("3", int, "it"),
        (True, int, "it"),
        (1, bool, "it"),
        (math.nan, float, "it"),
        (10**400, float, "it"),
        (None, str, "it"),
        ("", int | float | None, "it"),
        ({}, list[int], "it"),
        ([1, "2"], list[int], r"it\[1\]"),
        ([1], tuple[int, float], "it"),
        ([], dict[str, Any], "it"),
        ({"inner": {"size": 1}, "kind": "c"}, Outer, r"it\.kind"),
        ({"inner": {"size": "1"}, "kind": "a"}, Outer, r"it\.inner\.size"),
        ({"inner": {"size": -1}, "kind": "a"}, Outer, r"it\.inner: size must"),
        ({"inner": {"size": 1, "other": 2}, "kind": "a"}, Outer, "'other'"),
        ({"inner": {}, "kind": "a"}, Outer, "'size'"),
        ({"kind": "a"}, Outer, "'inner'"),
        ({"inner": {"size": 1}, "kind": "a", "pair": [1, 2, 3]}, Outer, r"it\.pair"),
    ],
)
def test_what_does_not_is_named(value, kind, place):
    with pytest.raises(FormatError, match=place):
        checked(value, kind, "it")


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, b"\xff", "1" * 10_000])
def test_text_that_is_no_json(text, tmp_path):
    with pytest.raises(FormatError, match="it"):
        parse(text, Any, "it")
    (tmp_path / "it").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError, match="it"):
        read(tmp_path / "it")
    with pytest.raises(FormatError, match="absent"):
        read(tmp_path / "absent")


def test_numbers_sizes_and_names():
    assert finite((1.0,), "it") == (1.0,)
    with pytest.raises(FormatError, match=r"it\[1\]"):
        finite((1.0, math.inf), "it")
    check_size(1 << 26, 0)
    check_size(200 << 30, 1 << 30)
    with pytest.raises(FormatError, match="declares"):
        check_size((1 << 26) + 1, 1)
    assert printable("a\x1b[31m\n\u202eß ±\ud800") == r"a\x1b[31m\n\u202eß ±\ud800"
