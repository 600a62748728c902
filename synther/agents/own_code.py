"""Algorithms and networks that the user typed as `module:name`: imported, and registered under that.

Only what was typed is imported: a name that was read from a file never is.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from synther.agents.agent import ALGORITHMS
from synther.agents.algorithm import Algorithm
from synther.agents.learner import ONLINE_AGENTS, OnlineAgent
from synther.agents.networks import NETWORKS, NetworkFactory
from synther.errors import ConfigError

_NETWORKS = ("--agent.actor-network", "--agent.critic-network")
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def register_typed(arguments: Sequence[str]) -> None:
    """Register what the arguments of `synther train` or `synther online` name, also from the current folder."""
    sys.path.insert(0, "")
    try:
        for before, word in zip(["", *arguments], arguments, strict=False):
            option, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
            if not _CODE.fullmatch(value):
                continue
            if option in _NETWORKS:
                if value not in NETWORKS:
                    NETWORKS.register(value, NetworkFactory(import_named(value, option)))
            elif option == "--agent":
                if value not in ONLINE_AGENTS:
                    ONLINE_AGENTS.register(value, OnlineAgent.of(_algorithm(value, option)))
            elif not option.startswith("--") and value not in ALGORITHMS:
                ALGORITHMS.register(value, _algorithm(value, "the algorithm"))
    finally:
        sys.path.remove("")


def import_named(place: str, option: str) -> Any:
    """What `module:name` means."""
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option} {place!r} cannot be imported ({error}): expected module:name") from None
    return found


def _algorithm(place: str, option: str) -> type[Algorithm]:
    found = import_named(place, option)
    if not (isinstance(found, type) and issubclass(found, Algorithm) and hasattr(found, "config_class")):
        raise ConfigError(f"{place} must be a subclass of Algorithm with a config_class, got {found!r}")
    return found
