"""What files say about themselves, checked before anything is built from it or shown: JSON, sizes, names.

Files may come from strangers. So all metadata and all JSON files pass through here. They are compared with type
annotations: a value of another type is a `FormatError` that names its place, not an error of the code that uses it.
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


_FREE = 64 << 20
"""Bytes of memory that any file may ask for."""
_MOST = 200
"""Times its own size that a larger file may ask for. Compressed rows seldom take less than a tenth of their memory."""


def check_size(declared: int, stored: int, times: int = _MOST) -> None:
    """Refuse arrays of so many `declared` bytes from a file of so many `stored` ones, before memory is taken for them.

    A small file can declare any size: by a header that is wrong, fill values of HDF5, or content that compresses well.
    """
    if declared > max(_FREE, times * stored):
        raise FormatError(
            f"the file has {stored:,} bytes and declares arrays of {declared:,}, over {times} times as many, which is "
            "taken for damage or an attack. If the data really compresses that well, write it without compression"
        )


def printable(text: str) -> str:
    """`text` with control characters escaped, which could move the cursor of a terminal or fake a line of output."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def parse(text: str | bytes, kind: Any, name: str) -> Any:
    """The JSON value in `text`, as `checked`; `name` says where it comes from."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # nested too deeply
        raise FormatError(f"{name} is not valid JSON ({error})") from None
    return checked(found, kind, name)


def read(path: Path, kind: Any = dict[str, Any]) -> Any:
    """The JSON value in the file `path`, as `checked`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror})") from None
    return parse(text, kind, str(path))


def checked(value: Any, kind: Any, name: str) -> Any:
    """`value`, which came from JSON, if it is of the `kind`, a type annotation; else a `FormatError` about `name`.

    A kind is bool, int, float (any number but NaN), str, None, Any, Literal, a union, list, tuple, dict with keys of
    text, a TypedDict or a dataclass. Lists become tuples where a tuple is expected, and objects become dataclasses,
    whose own errors are passed on with the name. Entries that a TypedDict does not name are kept as they are.
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
    """`values`, if none of them is infinite."""
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise FormatError(f"{name}[{place}] is {value}: expected a finite number")
    return values


def _plain(value: Any, kind: type, name: str) -> Any:
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _wrong(value, _NAMES[kind], name) from None
    if type(value) is not kind or value != value:
        raise _wrong(value, _NAMES[kind], name)
    return value


def _one_of(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """By the first kind that fits. The error is that of the only one which is not None."""
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return checked(value, others[0], name)
    if type(value) in others:  # a whole number may be one, though it is a number too
        return checked(value, type(value), name)
    for kind in others:
        try:
            return checked(value, kind, name)
        except FormatError:
            continue
    raise _wrong(value, " or ".join(_described(kind) for kind in kinds), name)


def _sequence(value: Any, origin: type, kinds: tuple[Any, ...], name: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list", name)
    if origin is list or kinds[1:] == (...,):
        if kinds[0] is float and all(type(one) is float and one == one for one in value):
            return origin(value)  # at once: the curves of a model have thousands of numbers
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise _wrong(value, f"a list of {len(kinds)}", name)
    pairs = enumerate(zip(value, kinds, strict=True))
    return origin(checked(one, kind, f"{name}[{place}]") for place, (one, kind) in pairs)


def _object(value: Any, kind: Any, name: str) -> Any:
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
    """The kind of each entry of an object, and the names of required entries."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        kinds = {key: get_args(one)[0] if get_origin(one) is NotRequired else one for key, one in hints.items()}
        # Not from __required_keys__, which knows nothing of annotations that are text.
        needed = [key for key, one in hints.items() if kind.__total__ and get_origin(one) is not NotRequired]
        return kinds, tuple(needed)
    own = [field for field in fields(kind) if field.init]
    needed = [one.name for one in own if one.default is MISSING and one.default_factory is MISSING]
    return {one.name: hints[one.name] for one in own}, tuple(needed)


def _described(kind: Any) -> str:
    return _NAMES.get(kind) or ("a list" if get_origin(kind) in (list, tuple) else "an object")


def _wrong(value: Any, expected: str, name: str) -> FormatError:
    return FormatError(f"{name}: expected {expected}, found {reprlib.repr(value)}")
