"""Convert options to plain Python numbers and booleans (for example from NumPy scalars), and check their values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from synther.errors import ConfigError

_KINDS: dict[str, tuple[type, tuple[type, ...], str]] = {
    "int": (int, (int,), "a whole number"),
    "float": (float, (int, float), "a number"),
    "bool": (bool, (bool,), "True or False"),
}
"""For each annotation: the Python type, the types that are accepted, and the words for an error message."""


def make_plain(config: Any, part: str) -> None:
    """Convert the numbers and booleans of a dataclass to plain Python values, in place.

    `part` is the name of this part of the settings in error messages.
    """
    for option in fields(config):
        kind, _, optional = str(option.type).partition(" | ")
        value = getattr(config, option.name)
        if kind not in _KINDS or (optional and value is None):
            continue
        own, taken, what = _KINDS[kind]
        plain = value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
        if own is int and isinstance(plain, float) and plain.is_integer():  # accepts 1e5 as a whole number
            plain = int(plain)
        if not isinstance(plain, taken) or isinstance(plain, bool) != (own is bool) or plain != plain:
            raise ConfigError(f"{part}.{option.name} must be {what}, got {value!r}")
        object.__setattr__(config, option.name, own(plain))


def whole_seed(seed: Any, name: str = "a seed") -> int:
    """Return `seed` as a Python int, or raise an error if it is not a whole number of at least 0."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigError(f"{name} must be a whole number of at least 0, got {seed!r}")
    return int(seed)


def check_least(config: Any, **numbers: int) -> None:
    """Raise an error if an option of `config` is not a whole number, or below the minimum given here for its name.

    None is always accepted.
    """
    for name, least in numbers.items():
        value = getattr(config, name)
        if value is None:
            continue
        if not isinstance(value, int):
            raise ConfigError(f"{name} must be a whole number (a Python int), got {value!r}")
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_one_of(what: str, name: str, known: Iterable[str]) -> None:
    """Raise an error if `name` is not among `known`. `what` says in the message what it is a name of."""
    if name not in (names := list(known)):
        raise ConfigError(f"unknown {what} {name!r}: expected one of {', '.join(names)}")


def with_options(part: str, default: Any, options: Mapping[str, Any], *fixed: str) -> Any:
    """Return the config `default` of the part or algorithm `part`, with `options` changed. Options named in `fixed`
    cannot be changed."""
    names = [option.name for option in fields(default) if option.init and option.name not in fixed]
    for option in options:
        if option not in names:
            raise ConfigError(f"unknown option {part}.{option}: expected one of {', '.join(names)}")
    return replace(default, **options)


def check_env_options(options: Mapping[str, Any]) -> None:
    """Raise an error if the options of an environment cannot be stored as JSON, in the description of a run."""
    try:
        json.dumps(options)
    except (TypeError, ValueError):
        raise ConfigError(
            f"env_options must contain only values that JSON can store (numbers, text, lists ...), got {options}"
        ) from None
