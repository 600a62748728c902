"""Check metadata of files before it is used: JSON, declared sizes, and names.

Files may come from strangers, so all metadata and all JSON files pass through this module. JSON is compared with type
annotations (`checked`). A value of another type raises a `FormatError` that names its place, instead of an error in the
code that uses the value later. `check_size` refuses files that declare huge arrays, and `printable` escapes names
before they are printed.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from synther.errors import FormatError, SyntherError

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
"""The types of plain JSON values, as error messages call them."""


_FREE = 64 << 20
"""Bytes of memory that a file of any size may declare."""
_MOST = 200
"""A file may declare arrays of at most this many times its own size, if they are larger than `_FREE`.

Compressed rows rarely take less than a tenth of their size in memory.
"""


def check_size(declared: int, stored: int, times: int = _MOST) -> None:
    """Raise an error if a file of `stored` bytes declares arrays of too many bytes, before memory is allocated for
    them.

    `times` is the largest allowed ratio of the two. A small file can declare any size: with a wrong header, with fill
    values of HDF5, or with content that compresses well.
    """
    if declared > max(_FREE, times * stored):
        raise FormatError(
            f"the file has {stored:,} bytes but declares arrays of {declared:,}, more than {times} times as many. It "
            "is probably damaged or malicious. If the data really compresses so well, write it without compression"
        )


def printable(text: str) -> str:
    """Escape control characters in `text`, because they could move the cursor of a terminal or fake lines of output."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def parse(text: str | bytes, kind: Any, name: str) -> Any:
    """Parse JSON and check its type with `checked`. `name` says in errors where the text comes from."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise FormatError(f"{name} is not valid JSON ({error})") from None
    return checked(found, kind, name)


def read(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read a JSON file and check its type with `checked`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror})") from None
    return parse(text, kind, str(path))


def checked(value: Any, kind: Any, name: str) -> Any:
    """Return `value`, which was parsed from JSON, if it matches `kind`. Otherwise raise a `FormatError` about `name`.

    `kind` is a type annotation: bool, int, float (any number except NaN), str, None, Any, Literal, a union, list,
    tuple, dict with text keys, a TypedDict or a dataclass. Lists are converted to tuples where a tuple is expected, and
    objects to dataclasses. If a dataclass raises an error, the error is passed on with `name`. Entries that a TypedDict
    does not name are returned unchanged.
    """
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _one_of(value, get_args(kind), name)
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in get_args(kind)):
            raise _wrong(value, " or ".join(map(repr, get_args(kind))), name)
        return value
    if origin in (list, tuple):
        return _sequence(value, origin, get_args(kind), name)
    if origin is dict or kind is dict or is_typeddict(kind) or is_dataclass(kind):
        return _object(value, kind, name)
    if kind is None or kind in _NAMES:
        return _plain(value, kind or NoneType, name)
    raise TypeError(f"no schema for {kind}")


def finite(values: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Return `values`, or raise a `FormatError` if one of them is infinite or NaN."""
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise FormatError(f"{name}[{place}] is {value}: expected a finite number")
    return values


def _plain(value: Any, kind: type, name: str) -> Any:
    """Check a boolean, number, text or null. A whole number is accepted as a float, but NaN is not."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _wrong(value, _NAMES[kind], name) from None
    if type(value) is not kind or value != value:
        raise _wrong(value, _NAMES[kind], name)
    return value


def _one_of(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """Check `value` against the types of a union, and return it as the first type that matches."""
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return checked(value, others[0], name)
    if type(value) in others:  # prefer the exact type: for int | float, 1 stays an int
        return checked(value, type(value), name)
    for kind in others:
        try:
            return checked(value, kind, name)
        except FormatError:
            continue
    raise _wrong(value, " or ".join(_described(kind) for kind in kinds), name)


def _sequence(value: Any, origin: type, kinds: tuple[Any, ...], name: str) -> Any:
    """Check a list, and return it as `origin`, which is list or tuple. `kinds` are the types of its items."""
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list", name)
    if origin is list or kinds[1:] == (...,):
        if kinds[0] is float and all(type(one) is float and one == one for one in value):
            return origin(value)  # a fast path, because the loss curves of a model have thousands of numbers
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise _wrong(value, f"a list of {len(kinds)} items", name)
    pairs = enumerate(zip(value, kinds, strict=True))
    return origin(checked(one, kind, f"{name}[{place}]") for place, (one, kind) in pairs)


def _object(value: Any, kind: Any, name: str) -> Any:
    """Check a JSON object, and return it as a dict or as the dataclass `kind`."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(value, "an object", name)
    if get_origin(kind) is dict or kind is dict:
        inner = get_args(kind)[1] if get_args(kind) else Any
        return {key: checked(one, inner, f"{name}.{key}") for key, one in value.items()}
    kinds, required = _entries(kind)
    for key in required:
        if key not in value:
            raise FormatError(f"{name} has no entry {key!r}")
    if not is_dataclass(kind):
        return {key: checked(one, kinds.get(key, Any), f"{name}.{key}") for key, one in value.items()}
    for key in value:
        if key not in kinds:
            raise FormatError(f"{name} has an unknown entry {key!r}: expected {', '.join(kinds)}")
    found = {key: checked(one, kinds[key], f"{name}.{key}") for key, one in value.items()}
    try:
        return kind(**found)  # type: ignore[operator]  # a class, not an instance
    except SyntherError as error:
        raise FormatError(f"{name}: {error}") from None


@cache
def _entries(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the type of each entry of a TypedDict or dataclass, and the names of the required entries."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        kinds = {key: get_args(one)[0] if get_origin(one) is NotRequired else one for key, one in hints.items()}
        # __required_keys__ cannot be used: it ignores NotRequired in annotations that are strings.
        needed = [key for key, one in hints.items() if kind.__total__ and get_origin(one) is not NotRequired]
        return kinds, tuple(needed)
    own = [field for field in fields(kind) if field.init]
    needed = [one.name for one in own if one.default is MISSING and one.default_factory is MISSING]
    return {one.name: hints[one.name] for one in own}, tuple(needed)


def _described(kind: Any) -> str:
    """Return the name of a type for an error message."""
    return _NAMES.get(kind) or ("a list" if get_origin(kind) in (list, tuple) else "an object")


def _wrong(value: Any, expected: str, name: str) -> FormatError:
    return FormatError(f"{name}: expected {expected}, found {reprlib.repr(value)}")
