"""Options as plain numbers and flags of Python, whatever library they come from, and checks of their values."""

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


def make_plain(config: Any, part: str) -> None:
    """Numbers and flags of a `part` of the settings, of whatever library they are, become those of Python."""
    for option in fields(config):
        kind, _, optional = str(option.type).partition(" | ")
        value = getattr(config, option.name)
        if kind not in _KINDS or (optional and value is None):
            continue
        own, taken, what = _KINDS[kind]
        plain = value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
        if own is int and isinstance(plain, float) and plain.is_integer():  # 1e5
            plain = int(plain)
        if not isinstance(plain, taken) or isinstance(plain, bool) != (own is bool) or plain != plain:
            raise ConfigError(f"{part}.{option.name} must be {what}, got {value!r}")
        object.__setattr__(config, option.name, own(plain))


def whole_seed(seed: Any, name: str = "a seed") -> int:
    """As an int of Python; refuse what no random numbers can be drawn from."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigError(f"{name} must be a whole number and at least 0, got {seed!r}")
    return int(seed)


def check_least(config: Any, **numbers: int) -> None:
    """Refuse options of `config` that are no whole number, or below the one given for them here; None is neither."""
    for name, least in numbers.items():
        value = getattr(config, name)
        if value is None:
            continue
        if not isinstance(value, int):
            raise ConfigError(f"{name} must be a whole number, an int of Python, got {value!r}")
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_one_of(what: str, name: str, known: Iterable[str]) -> None:
    if name not in (names := list(known)):
        raise ConfigError(f"unknown {what} {name!r}: expected one of {', '.join(names)}")


def with_options(algorithm: str, default: Any, options: Mapping[str, Any], *fixed: str) -> Any:
    """The config `default` of an algorithm with other options. It may have options that are `fixed`."""
    names = [option.name for option in fields(default) if option.init and option.name not in fixed]
    for option in options:
        if option not in names:
            raise ConfigError(f"unknown option {algorithm}.{option}: expected one of {', '.join(names)}")
    return replace(default, **options)


def check_env_options(options: Mapping[str, Any]) -> None:
    """They are part of what a run writes down of itself."""
    try:
        json.dumps(options)
    except (TypeError, ValueError):
        raise ConfigError(f"env_options must be what JSON can hold, got {options}") from None
