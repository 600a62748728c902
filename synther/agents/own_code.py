"""Import algorithms and networks that the user gives on the command line as `module:name`, and register them.

Only names on the command line are imported. Names that were read from a file are never imported.
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


def register_typed(arguments: Sequence[str], *, online: bool = False) -> None:
    """Register all algorithms and networks `module:name` in the arguments of `synther train`, or of `synther online`.

    `train` takes an algorithm as a word of its own, `online` as `--agent`. Modules in the current folder are found too.
    """
    sys.path.insert(0, "")
    try:
        for previous, word in zip(["", *arguments], arguments, strict=False):
            option, _, value = word.partition("=") if word.startswith("--") else (previous, "", word)
            if not _CODE.fullmatch(value):
                continue
            if option in _NETWORKS:
                register_network(value, option)
            elif option == "--agent":
                if value not in ONLINE_AGENTS:
                    ONLINE_AGENTS.register(value, OnlineAgent.of(_algorithm(value, option)))
            elif not online and not option.startswith("--") and value not in ALGORITHMS:
                ALGORITHMS.register(value, _algorithm(value, "the algorithm"))
    finally:
        sys.path.remove("")


def register_network(place: str, option: str) -> None:
    """Import the network `place`, given as `module:name`, and register it, unless it is known."""
    if place not in NETWORKS:
        NETWORKS.register(place, NetworkFactory(import_named(place, option)))


def import_named(place: str, option: str) -> Any:
    """Import and return the object `place`, given as `module:name`. `option` is its option, for error messages."""
    module, _, name = place.partition(":")
    try:
        imported: Any = importlib.import_module(module)
        for part in name.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option} {place!r} cannot be imported ({error}): expected module:name") from None
    return imported


def _algorithm(place: str, option: str) -> type[Algorithm]:
    """Import the algorithm `place`, given as `module:name`."""
    imported = import_named(place, option)
    if not (isinstance(imported, type) and issubclass(imported, Algorithm) and hasattr(imported, "config_class")):
        raise ConfigError(f"{place} must be a subclass of Algorithm with a config_class, got {imported!r}")
    return imported
