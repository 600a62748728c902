"""What is asked of the options of a run, before any work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from synther.errors import ConfigError


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


def check_options(algorithm: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names of options that an algorithm does not have."""
    names = list(known)
    for option in options:
        if option not in names:
            raise ConfigError(f"unknown option {algorithm}.{option}: expected one of {', '.join(names)}")


def check_env_options(options: Mapping[str, Any]) -> None:
    """They are part of what a run writes down of itself."""
    try:
        json.dumps(options)
    except (TypeError, ValueError):
        raise ConfigError(f"env_options must be what JSON can hold, got {options}") from None
