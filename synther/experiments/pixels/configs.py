"""The options of agents that see, as people and files write them, and those of their heads alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from synther.agents.drq_bc import DrQBCConfig
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelConfig, algorithm_of
from synther.pixels.eyes import Features
from synther.plain import check_one_of, check_options


def pixel_config(algorithm: str, options: Mapping[str, Any]) -> PixelConfig:
    """Its defaults, but for some `options`."""
    kind = kind_of(algorithm)
    check_options(algorithm, options, (option.name for option in fields(kind) if option.init))
    return kind(**options)


def kind_of(algorithm: str) -> type[PixelConfig]:
    check_one_of("algorithm", algorithm, PIXEL_ALGORITHMS)
    return PIXEL_ALGORITHMS[algorithm][0]


def all_features(algorithm: str) -> Features:
    """Those of every trunk that its agents have."""
    return "both" if kind_of(algorithm) is DrQBCConfig else "actor"


def to_json(config: PixelConfig) -> dict[str, Any]:
    return {"algorithm": algorithm_of(config), **asdict(config)}


def heads_of(described: Mapping[str, Any], features: Features) -> PixelConfig:
    """Of an agent that `to_json` has described, for latents of these features."""
    kind = kind_of(described["algorithm"])
    heads = kind(**{option.name: described[option.name] for option in fields(kind) if option.init})
    if isinstance(heads, DrQBCConfig):
        return replace(heads, features="both" if features == "both" else "shared")
    return heads
